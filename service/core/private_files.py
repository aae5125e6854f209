"""Permissions of the service's own files, which hold token hashes, webhook secrets and specs."""

import os
import stat
from pathlib import Path

import sqlalchemy as sa
import structlog

from service.core.errors import ServiceError

log = structlog.get_logger("service")

_GROUP_AND_OTHERS = 0o077
_SQLITE_SUFFIXES = ("", "-wal", "-shm")


def restrict_permissions(state: Path, database_url: str) -> None:
    """Remove the access of other accounts to the state folder and a SQLite database; create the database if missing.

    Raises:
        ServiceError: the database belongs to another account, so its mode cannot be changed.
    """
    if state.stat().st_uid == os.getuid():
        _restrict(state)
    url = sa.make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    file = Path(url.database)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives its journal files the mode of this file.
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in _SQLITE_SUFFIXES:
        _restrict(Path(f"{file}{suffix}"))


def read_secret(path: Path) -> str:
    """Return the secret in a file, without surrounding blanks.

    Raises:
        ServiceError: the file cannot be read, is empty, or is readable by others.
    """
    try:
        if stat.S_IMODE(path.stat().st_mode) & _GROUP_AND_OTHERS:
            raise ServiceError(f"{path} contains a secret but is readable by others: chmod 600 {path}")
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ServiceError(f"{path} cannot be read: {reason}; it must belong to the service's account") from None
    if not text:
        raise ServiceError(f"{path} is empty")
    return text


def _restrict(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _GROUP_AND_OTHERS:
        return
    if status.st_uid != os.getuid():
        raise ServiceError(f"{path} is readable by others and belongs to another account: chmod go-rwx {path}")
    path.chmod(mode & ~_GROUP_AND_OTHERS)
    log.warning("removed the access of other accounts", path=str(path), mode=oct(mode))
