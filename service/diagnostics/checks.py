"""Checks of an installation, run on the machine of the service. Each returns a finding with its fix."""

import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import sqlalchemy as sa

from service.auth.munge import UnmungeProgram
from service.auth.unix_accounts import NameService
from service.core.errors import ServiceError
from service.core.python_version import describe_missing
from service.core.settings import Settings, unknown_variables
from service.db.migrate import current, head
from service.db.models import Checkpoint, Secret
from service.diagnostics import slurm_checks as slurm
from service.diagnostics.owner_checks import owners
from service.diagnostics.root_checks import roots
from service.diagnostics.slurm_times import SAVE_DAYS, ended_jobs, time_to_save
from service.scheduler.local.policy import visible_gpus
from service.secrets.encryption import SecretCipher, SecretKeyError
from service.secrets.repository import OLDEST
from trainyard.contract.local_paths import is_loopback
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

Check = Callable[[Settings], Finding]

_LOCAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"})
_SECONDS = 10.0
_MAX_SKEW = 2.0
"""Seconds by which the clocks of service and database may differ."""
_MAX_LISTED_OWNERS = 20
_TRUST_FIX = (
    "make your authority known here (in containers docker/certs/*.crt, then build again; else the machine's store, or "
    "SSL_CERT_FILE) and on every node; and compare the names in the certificate"
)
_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)"')
_PACKAGES = ("trainyard", "fastapi", "sqlalchemy", "submitit", "torch")


def run_checks(settings: Settings, more: Iterable[Check] = (), *, query_scheduler: bool = True) -> Iterator[Finding]:
    """Yield the finding of each check. A check that raises yields an error finding. Nothing is changed.

    Args:
        more: Checks of plugins.
        query_scheduler: Whether to call slurmctld; requests of the API must not.
    """
    checks: list[Check] = [
        _variables,
        _database,
        _schema,
        _clock,
        _runs,
        _shared,
        _disk,
        _private,
        _secrets,
    ]
    if settings.backend == "slurm":
        checks += [slurm.commands, slurm.interpreter]
        checks += _SCHEDULER_CHECKS if query_scheduler else []
    checks += [_route, _pages, _gpus, containers, munge, owners, roots, *more, _interpreter, _versions]
    yield from _run(settings, checks)


def examine_slurm(settings: Settings) -> Iterator[Finding]:
    """Yield the findings of the checks that call the scheduler."""
    yield from _run(settings, _SCHEDULER_CHECKS)


def _run(settings: Settings, checks: Sequence[Check]) -> Iterator[Finding]:
    for check in checks:
        try:
            yield check(settings)
        except (OSError, sa.exc.SQLAlchemyError, subprocess.SubprocessError) as error:
            name = check.__name__.removeprefix("_")
            yield error_finding(name, f"cannot be checked: {str(error).splitlines()[0]}", "see the message")


def _variables(_settings: Settings) -> Finding:
    """Check the names of the variables with our prefix: a variable that is not a setting has no effect."""
    unknown = dict(unknown_variables(os.environ))
    if not unknown:
        return ok_finding("variables", "every variable TRAINYARD_* is a setting")
    meant = [f"{name}; did you mean {near}?" if near else name for name, near in unknown.items()]
    message = f"no setting, and without effect: {' '.join(meant)}"
    finding = error_finding if any(unknown.values()) else warning_finding
    return finding("variables", message, "correct or remove them; docs/settings.md lists the settings")


def _database(settings: Settings) -> Finding:
    if (missing := _missing_file(settings)) is not None:
        fix = "start the service once, or run: python -m service migrate"
        return error_finding("database", f"{missing} does not exist yet", fix)
    url = sa.make_url(settings.url)
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except sa.exc.OperationalError as error:
        fix = "start it, and compare TRAINYARD_DATABASE_URL"
        return error_finding("database", f"does not answer: {str(error.orig).splitlines()[0]}", fix)
    finally:
        engine.dispose()
    return ok_finding("database", url.render_as_string(hide_password=True))


def _missing_file(settings: Settings) -> Path | None:
    """The file of a SQLite database, if it does not exist; connecting would create it."""
    url = sa.make_url(settings.url)
    file = Path(url.database or "")
    return file if url.get_backend_name() == "sqlite" and not file.exists() else None


def _schema(settings: Settings) -> Finding:
    if _missing_file(settings) is not None:
        return error_finding("migrations", "there is no database", "see above")
    revision, newest = current(settings.url), head()
    if revision == newest:
        return ok_finding("migrations", f"at {revision}")
    return error_finding(
        "migrations", f"at {revision or 'none'}, this release needs {newest}", "run: python -m service migrate"
    )


def _clock(settings: Settings) -> Finding:
    if settings.url.startswith("sqlite"):
        return ok_finding("clock", "the database is on this machine")
    database_time = _read_rows(settings, sa.text("SELECT clock_timestamp()"))[0][0]
    skew = abs((datetime.now(UTC) - database_time).total_seconds())
    if skew > _MAX_SKEW:
        return error_finding("clock", f"the database's differs by {skew:.1f} s", "run NTP or chrony on both machines")
    return ok_finding("clock", f"the database's differs by {skew:.1f} s")


def _runs(settings: Settings) -> Finding:
    try:
        with NamedTemporaryFile(dir=settings.runs, prefix=".doctor-") as file:
            file.write(b"x")
            os.fsync(file.fileno())
    except OSError as error:
        fix = "create it, or set TRAINYARD_RUNS_DIR to a folder that this account may write to"
        return error_finding("runs", f"{settings.runs} cannot be written to: {error.strerror}", fix)
    return ok_finding("runs", f"{settings.runs} can be written to")


def _shared(settings: Settings) -> Finding:
    kind = filesystem_of(settings.runs, Path("/proc/mounts").read_text())
    if settings.backend == "local":
        return ok_finding("filesystem", f"{kind}; the local backend needs no shared one")
    if kind in _LOCAL_FILESYSTEMS:
        message = f"{settings.runs} is on {kind}, which the nodes do not see unless it is mounted there as well"
        fix = "nothing, where a job has run already; else set TRAINYARD_RUNS_DIR to a folder that every node has"
        return warning_finding("filesystem", message, fix)
    return ok_finding("filesystem", f"{kind}; whether nodes mount it too: srun -N1 ls {settings.runs}")


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the filesystem that holds a path, from the text of /proc/mounts; `unknown` if no mount matches."""
    entries = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    above = [(mount_point, kind) for mount_point, kind in entries if path.is_relative_to(mount_point)]
    return max(above, key=lambda pair: len(pair[0]), default=("", "unknown"))[1]


def _disk(settings: Settings) -> Finding:
    free = shutil.disk_usage(settings.runs).free
    if free < settings.low_disk_bytes:
        fix = "delete jobs (trainyard usage shows whose), or move TRAINYARD_RUNS_DIR"
        return error_finding("disk", f"only {format_size(free)} are free for runs", fix)
    return ok_finding("disk", f"{format_size(free)} are free for runs")


def _private(settings: Settings) -> Finding:
    token = settings.admin_token_file or settings.state / "admin_token"
    if not token.exists():
        return warning_finding(
            "tokens", f"{token} does not exist", "fine if the token was moved elsewhere; else start the service"
        )
    mode = stat.S_IMODE(token.stat().st_mode)
    if mode & 0o077:
        return error_finding("tokens", f"{token} has mode {mode:04o}: others can read it", f"chmod 600 {token}")
    return ok_finding("tokens", f"{token} is private")


def _secrets(settings: Settings) -> Finding:
    """Whether the key of users' secrets is usable; a missing default key is an error only if there are secrets."""
    cipher = SecretCipher.from_settings(settings)
    try:
        cipher.load_key()
        for row in _read_rows(settings, OLDEST):
            cipher.require_readable(*row)
    except SecretKeyError as error:
        owners = _secret_owners(settings)
        if settings.secrets_key_file is None and not owners:
            return ok_finding("secrets", "no user has stored any")
        users = f"; users with secrets: {', '.join(owners)}" if owners else ""
        return error_finding("secrets", f"users' secrets cannot be read: {error.cause}{users}", error.remedy)
    return ok_finding("secrets", "the key is usable")


def _secret_owners(settings: Settings) -> Sequence[str]:
    """The first users who have secrets."""
    owners = sa.select(Secret.owner).distinct().order_by(Secret.owner).limit(_MAX_LISTED_OWNERS)
    return [row[0] for row in _read_rows(settings, owners)]


def _read_rows(settings: Settings, query: sa.Executable) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a query; none if there is no database yet."""
    if _missing_file(settings) is not None:
        return ()
    engine = sa.create_engine(settings.url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]
    finally:
        engine.dispose()


def _saves(settings: Settings) -> Finding:
    """Whether the longest save of late fits into the time that Slurm gives a job that has to stop."""
    since = datetime.now(UTC) - timedelta(days=SAVE_DAYS)
    query = sa.select(sa.func.max(Checkpoint.seconds)).where(Checkpoint.created_at > since)
    rows = _read_rows(settings, query)
    return time_to_save(settings, rows[0][0] if rows else None)


_SCHEDULER_CHECKS = (slurm.controller, slurm.requests, ended_jobs, _saves)


def _route(settings: Settings) -> Finding:
    """Whether the URL that workers use answers from this machine."""
    url = settings.url_for_workers
    name = "TRAINYARD_WORKER_URL" if settings.worker_url else "TRAINYARD_PUBLIC_URL"
    if settings.backend == "slurm" and (urlsplit(url).hostname or "") in ("127.0.0.1", "localhost", "::1"):
        return error_finding("route", f"workers would call {url}, which is their own node", f"set {name}")
    try:
        with urlopen(f"{url}/livez", timeout=_SECONDS):  # noqa: S310 (the service's own address)
            pass
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        distrusted = isinstance(reason, ssl.SSLCertVerificationError)
        fix = _TRUST_FIX if distrusted else f"start the service: trainyard serve; if it runs, set {name}"
        return error_finding("route", f"{url} does not answer from here: {reason}", fix)
    nodes = f"; whether from the nodes too: srun -N1 curl {url}/livez" if settings.backend == "slurm" else ""
    return ok_finding("route", f"{url} answers from here{nodes}")


def _pages(settings: Settings) -> Finding:
    """Whether a page of the service, and a style that it names, load by the URL for users."""
    url, style = settings.service_url, ""
    fix = "let the proxy pass all paths below the address on; docs/operations.md has an example for nginx"
    try:
        with urlopen(f"{url}/sign-in", timeout=_SECONDS) as page:  # noqa: S310 (the service's own address)
            named = _STYLE.search(page.read().decode(errors="replace"))
            style = urljoin(page.url, named[1]) if named else ""
        if not style:
            other = "another program answers, or a portal wants a sign-in of its own"
            return warning_finding("pages", f"{url} shows no page of the service: {other}", f"try a browser; {fix}")
        with urlopen(style, timeout=_SECONDS) as answer:  # noqa: S310 (the service's own address)
            media_type = answer.headers.get_content_type()
    except (URLError, OSError) as error:
        what = f"the style {style} of a page" if style else f"{url}/sign-in"
        finding = error_finding if style else warning_finding
        return finding("pages", f"{what} does not load: {getattr(error, 'reason', error)}", fix)
    if media_type != "text/css":
        return error_finding("pages", f"the style {style} of a page is answered as {media_type}", fix)
    return ok_finding("pages", f"a page and its style load by {url}")


def _gpus(settings: Settings) -> Finding:
    needs_gpu = settings.backend == "local" and settings.accelerator == "cuda"
    if needs_gpu and not visible_gpus(os.environ, os.listdir("/dev")):
        message = "TRAINYARD_ACCELERATOR is cuda, and this machine shows no NVIDIA device: no job can run"
        return error_finding("gpu", message, "unset it, or CUDA_VISIBLE_DEVICES where that hides them")
    if shutil.which("nvidia-smi") is None:
        where = "the nodes may have some" if settings.backend == "slurm" else "jobs run on the CPU"
        return ok_finding("gpu", f"none here; {where}")
    answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S607
    if answer.returncode:
        return error_finding(
            "gpu", "nvidia-smi fails: the driver does not answer", "reload the driver, or restart the machine"
        )
    return ok_finding("gpu", f"{len(answer.stdout.splitlines())} here")


def _interpreter(_settings: Settings) -> Finding:
    """Whether this Python has the security fixes that matter for the service."""
    if (message := describe_missing(sys.version_info[:3])) is not None:
        return warning_finding("interpreter", message, "install the newest patch release of this Python")
    return ok_finding("interpreter", f"{sys.version.split()[0]} has the known security fixes")


def _versions(_settings: Settings) -> Finding:
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed here")
    return ok_finding("versions", ", ".join(versions))


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


_PROGRAMS: Mapping[ContainerRuntime, str] = {
    "apptainer": "apptainer",
    "charliecloud": "ch-run",
    "docker": "docker",
    "enroot": "enroot",
    "podman": "podman",
    "pyxis": "srun",
}


def containers(settings: Settings) -> Finding:
    """Whether the selected runtime is installed here, and which others are."""
    installed = [runtime for runtime in _PROGRAMS if _is_installed(runtime)]
    names = ", ".join(installed) or "no container runtime"
    selected = settings.container_runtime
    if selected is None:
        return ok_finding("containers", f"off (TRAINYARD_CONTAINER_RUNTIME); this machine has {names}")
    program = _PROGRAMS[selected]
    if selected == "pyxis" and settings.backend == "local":
        message = "pyxis is a plug-in of Slurm's srun, and the backend is local: no container can start"
        return error_finding("containers", message, "select another TRAINYARD_CONTAINER_RUNTIME")
    if selected not in installed:
        message = f"{selected} (`{program}`) is not here; this machine has {names}"
        if settings.backend == "local":
            return error_finding("containers", message, "install it, or select another TRAINYARD_CONTAINER_RUNTIME")
        return warning_finding("containers", message, f"check on a node: srun -N1 {program} --version")
    if selected == "docker" and settings.backend == "slurm":
        message = "containers of docker are children of its daemon: Slurm's limits of memory and GPUs do not apply"
        return warning_finding("containers", message, "select podman, apptainer, charliecloud, enroot or pyxis")
    return ok_finding("containers", f"{selected} is here; installed: {names}")


def _is_installed(runtime: ContainerRuntime) -> bool:
    program = shutil.which(_PROGRAMS[runtime])
    if program is None or runtime != "pyxis":
        return program is not None
    help_text = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=_SECONDS, check=False
    ).stdout
    # The plug-in adds its options to srun's.
    return "--container-mounts" in help_text
