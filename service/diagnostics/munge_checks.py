"""The check of sign-in by munge: whether this machine makes and decodes credentials, and knows the groups."""

import shutil
import subprocess
from urllib.parse import urlsplit

from service.auth.munge import UnmungeProgram
from service.auth.unix_accounts import NameService
from service.core.errors import ServiceError
from service.core.settings import Settings
from trainyard.contract.local_paths import is_loopback
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_SECONDS = 10.0


def munge(settings: Settings) -> Finding:
    """Whether Unix accounts can sign in by munge, if the administrator has switched that on."""
    if not settings.munge_role:
        return ok_finding("munge", "off (TRAINYARD_MUNGE_ROLE): users need tokens of an administrator")
    program = shutil.which("munge")
    if program is None:
        return error_finding("munge", "the program `munge` is not installed", "install munge, with the cluster's key")
    options = ["--no-input", *([f"--socket={settings.munge_socket}"] if settings.munge_socket else [])]
    made = subprocess.run([program, *options], capture_output=True, text=True, timeout=_SECONDS, check=False)
    if made.returncode != 0:
        return error_finding("munge", made.stderr.strip()[:300], "start munged here; see TRAINYARD_MUNGE_SOCKET")
    groups = frozenset(filter(None, (settings.munge_group, settings.munge_admin_group)))
    try:
        UnmungeProgram(settings.munge_socket).decode(made.stdout.strip())
        NameService().require_groups(groups)
    except ServiceError as error:
        return error_finding("munge", error.message, "check munged, TRAINYARD_MUNGE_GROUP and _ADMIN_GROUP")
    if is_loopback(urlsplit(settings.service_url).hostname or ""):
        message = f"accounts of this machine alone can sign in: the service's URL is {settings.service_url}"
        return warning_finding("munge", message, "set TRAINYARD_PUBLIC_URL to the URL that users give to login")
    return ok_finding("munge", f"Unix accounts can sign in with: trainyard login --url {settings.service_url}")
