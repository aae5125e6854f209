"""Makes munge credentials with the program `munge`."""

import os
import shutil
import subprocess

from trainyard.client.errors import SettingError

_TTL_SECONDS = 60
_TIMEOUT_SECONDS = 20.0


def make_credential(message: bytes) -> str:
    """Return a credential by which this account states a message. `TRAINYARD_MUNGE_SOCKET` names munged's socket.

    Raises:
        SettingError: this machine has no munge, or it does not work.
    """
    program = shutil.which("munge")
    if program is None:
        raise SettingError(
            "the program `munge` is not installed here; sign in on a machine of the cluster, or set TRAINYARD_TOKEN "
            "to a token of an administrator"
        )
    given = os.environ.get("TRAINYARD_MUNGE_SOCKET")
    options = [f"--ttl={_TTL_SECONDS}", *([f"--socket={given}"] if given else [])]
    try:
        done = subprocess.run(
            [program, *options], input=message, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"munge failed: {error}") from None
    if done.returncode != 0:
        raise SettingError(f"munge failed: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout.decode("ascii", errors="replace").strip()
