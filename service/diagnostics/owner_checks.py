"""The check of `TRAINYARD_RUN_AS=owner`: whether the service can act as its users, and whether they can change it."""

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from service.as_owner.accounts import AccountError, Accounts
from service.as_owner.calls import HELPER
from service.as_owner.runs_folder import MODE, closed_parents, is_usable
from service.core.settings import Settings
from service.db.models import UnixUser
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding, warning_finding

_SECONDS = 10.0
_MAX_USERS = 200
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def owners(settings: Settings) -> Finding:
    """Whether jobs can run as their owners, if the administrator has switched that on."""
    if settings.run_as == "service":
        return ok_finding("owners", "jobs run as the service's account (TRAINYARD_RUN_AS=service)")
    helper = Path(sys.executable).with_name(HELPER)
    if not helper.exists():
        return error_finding("owners", f"{helper} is missing", "install the package into the service's environment")
    if not os.access(helper, os.X_OK):
        return error_finding("owners", f"{helper} cannot be executed", f"chmod 755 {helper}")
    if problem := _runs_problem(settings.runs):
        fix = f"chown {os.geteuid()}:{os.getegid()} {settings.runs} && chmod {MODE:o} {settings.runs}"
        fix += ", and chmod o+x each folder above it"
        return error_finding("owners", problem, fix)
    if problem := program_problem([helper, Path(sys.executable), Path(__file__).resolve().parents[2]], os.geteuid()):
        fix = "install into a folder that users can read and not write to, such as /opt/trainyard"
        return error_finding("owners", problem, fix)
    return _accounts(settings, helper)


def sudo_rule(service: str, users: str, helper: Path) -> str:
    """Return the line for a file in /etc/sudoers.d.

    Args:
        users: The Unix group of the users.
    """
    return f'{service} ALL=(%{users}) NOPASSWD: {helper} ""'


def program_problem(paths: Iterable[Path], service_uid: int) -> str | None:
    """Return why users could change programs that run as others, or cannot read them; None if neither."""
    named = [each for path in paths for each in (path, path.resolve())]
    for part in dict.fromkeys(part for path in named for part in (*reversed(path.parents), path)):
        status = part.stat()
        is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (0, service_uid) or (status.st_mode & _WRITABLE and not is_sticky):
            return f"{part} can be changed by other accounts than root and the service's"
        if not status.st_mode & stat.S_IXOTH and not stat.S_ISREG(status.st_mode):
            return f"{part} is closed to users, and the helper and the jobs run from there as users"
    return None


def _runs_problem(runs: Path) -> str | None:
    status = runs.stat()
    if closed := closed_parents(runs):
        return f"{closed[0]} is closed to users, who must reach {runs}"
    if is_usable(status):
        return None
    mode, account = stat.S_IMODE(status.st_mode), f"{os.geteuid()}:{os.getegid()}"
    return f"{runs} has mode {mode:o} and owner {status.st_uid}:{status.st_gid}; it needs {MODE:o} and {account}"


def _accounts(settings: Settings, helper: Path) -> Finding:
    """Whether the service can act as each of its users."""
    accounts, names, problems = Accounts(settings.munge_min_uid), [], []
    for name, uid in _users(settings):
        try:
            names.append(accounts.get(uid).name)
        except AccountError as error:
            problems.append(f"{name}: {error}")
    if problems:
        return warning_finding("owners", "; ".join(problems[:3]), "their jobs are rejected until that is corrected")
    if os.geteuid() == 0:
        return ok_finding("owners", f"the service is root and acts as its users ({len(names)})")
    service = pwd.getpwuid(os.geteuid()).pw_name
    rule = sudo_rule(service, settings.munge_group or "GROUP-OF-YOUR-USERS", helper)
    fix = f"a line in /etc/sudoers.d/trainyard, written by visudo: {rule}"
    for name in names:
        # With a command, `-l` only states whether it is permitted.
        command = ["sudo", "-n", "-u", name, "-l", "--", str(helper)]
        permitted = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False).returncode == 0
        if not permitted:
            message = f"sudo does not permit {service} to act as {name}: there is no rule, or it does not name {name}"
            return error_finding("owners", message, f"compare `id {name}` with {fix}")
    if not names:
        message = "no user has signed in yet, so that sudo could not be tried; run this again after the first sign-in"
        return warning_finding("owners", message, fix)
    return ok_finding("owners", f"sudo permits {service} to act as its users ({len(names)})")


def _users(settings: Settings) -> list[tuple[str, int]]:
    """Return names and uids of the newest users with Unix accounts."""
    query = sa.select(UnixUser.name, UnixUser.uid).order_by(UnixUser.created_at.desc()).limit(_MAX_USERS)
    engine = sa.create_engine(settings.url)
    try:
        with engine.connect() as connection:
            return [(row.name, row.uid) for row in connection.execute(query)]
    finally:
        engine.dispose()
