"""Finds the accounts that listen on a TCP port of this machine, so that no token is sent to another account's
program."""

from collections.abc import Iterable
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_ADDRESS, _STATE, _UID = 1, 3, 7
"""Columns of the tables; see proc_net_tcp in the documentation of Linux."""


def listener_uids(port: int, tables: Iterable[Path] = _TABLES) -> set[int] | None:
    """Return the accounts whose sockets listen on the port, on any address; None if the system does not show it."""
    texts = [text for table in tables if (text := _read(table)) is not None]
    if not texts:
        return None
    rows = (line.split() for text in texts for line in text.splitlines()[1:])
    return {
        int(row[_UID])
        for row in rows
        if row[_STATE] == _LISTENING and int(row[_ADDRESS].rpartition(":")[2], 16) == port
    }


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
