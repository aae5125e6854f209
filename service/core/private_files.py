"""The service's own files are nobody else's to read: tokens' hashes, webhooks' secrets, everyone's specs."""

import os
import stat
from pathlib import Path

import sqlalchemy as sa
import structlog

from service.core.errors import ServiceError

log = structlog.get_logger("service")

_OTHERS = 0o077
_BESIDE = ("", "-wal", "-shm")


def restrict_permissions(state: Path, database_url: str) -> None:
    """Take from others what they may do with the state folder and a SQLite database, or make those for us alone.

    Raises:
        ServiceError: the database belongs to another account, whose mode we cannot change.
    """
    if state.stat().st_uid == os.getuid():
        _close(state)
    url = sa.make_url(database_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    file = Path(url.database)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives its other files the mode of this one.
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    for ending in _BESIDE:
        _close(Path(f"{file}{ending}"))


def read_secret(path: Path) -> str:
    """The one line of a file that holds a secret.

    Raises:
        ServiceError: it cannot be read, is empty, or others may read it too.
    """
    try:
        if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
            raise ServiceError(f"{path} holds a secret and can be read by others: chmod 600 {path}")
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or "it is not text"
        raise ServiceError(f"{path} cannot be read: {told}; it must belong to the service's account") from None
    if not text:
        raise ServiceError(f"{path} is empty")
    return text


def _close(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if not mode & _OTHERS:
        return
    if found.st_uid != os.getuid():
        raise ServiceError(f"{path} can be read by others and belongs to another account: chmod go-rwx {path}")
    path.chmod(mode & ~_OTHERS)
    log.warning("others could read it; now they cannot", path=str(path), mode=oct(mode))
