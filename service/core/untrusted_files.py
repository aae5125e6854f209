"""Reading what a job may have put in its folder: regular files only, and a bounded number of names."""

import os
import stat
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_LINE_BYTES, _LINE_CHARACTERS = 4096, 500


def list_names(folder: Path, limit: int) -> list[str]:
    """Return the names of at most `limit` entries of a folder, in order. A link to a folder is not followed.

    Raises:
        OSError: the folder cannot be read.
    """
    if folder.is_symlink():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, limit))


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the path cannot be read, or is a link, a pipe or anything else but a regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def last_line(path: Path) -> str:
    """Return the last line of a log, at most 500 printable characters; empty if there is none or it cannot be read."""
    try:
        with open_regular_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LINE_BYTES))
            lines = file.read(_LINE_BYTES).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in lines[-1])[:_LINE_CHARACTERS] if lines else ""


def read_regular_file(path: Path, offset: int, size: int) -> bytes:
    """Return up to `size` bytes of a regular file from `offset`.

    Raises:
        OSError: as `open_regular_file`.
    """
    with open_regular_file(path) as file:
        file.seek(offset)
        return file.read(size)
