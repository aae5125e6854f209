"""Reads below a folder that a job can write to: regular files only; links are never followed."""

import os
import stat
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from trainyard.contract.base import MAX_TIME, MIN_TIME
from trainyard.contract.wire.files import FileResource

MAX_LISTED = 10_000
"""The most files in a listing; further ones can still be downloaded by path."""

CHUNK = 256 * 1024

_MAX_ENTRIES = 50_000
"""Entries of all folders that one listing looks at."""
_MAX_PATH = 1024
"""Characters of a path below a folder."""


def list_files(root: Path, *, hidden: bool, irregular: list[str] | None = None) -> list[FileResource]:
    """Return the regular files below a folder, by path.

    Args:
        hidden: Include files and folders whose names begin with a dot.
        irregular: Receives the paths of links and special files, which are left out.
    """
    files: list[FileResource] = []
    folders = [] if root.is_symlink() else [root]
    visited = 0
    while folders and len(files) < MAX_LISTED and visited < _MAX_ENTRIES:
        entries = _entries(folders.pop(), _MAX_ENTRIES - visited)
        visited += len(entries)
        for entry in entries:
            if entry.name.startswith(".") and not hidden:
                continue
            path = Path(entry.path).relative_to(root).as_posix()
            is_file, is_plain = entry.is_file(follow_symlinks=False), is_plain_path(path)
            if entry.is_dir(follow_symlinks=False) and len(path) <= _MAX_PATH:
                folders.append(Path(entry.path))
            elif is_file and is_plain:
                files += _resources(path, entry)
            elif irregular is not None and not (is_file and is_plain):
                irregular.append(path.encode(errors="backslashreplace").decode())
    return sorted(files, key=lambda file: file.path)[:MAX_LISTED]


def is_plain_path(path: str) -> bool:
    """Return whether a URL can name the path, and none of its parts leads out, even if a proxy decodes it again."""
    if len(path) > _MAX_PATH:
        return False
    path = unquote(path)
    if unquote(path) != path:
        return False  # Escapes of escapes: decoding all levels could take a pass for each character.
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return not any(part in ("", ".", "..") for part in path.split("/")) and not any(c in path for c in "\\\0")


def modified_time(status: os.stat_result) -> datetime:
    """Return the time of the last change. A job can set any time, which is limited to what the API can represent."""
    seconds = min(max(status.st_mtime, MIN_TIME.timestamp()), MAX_TIME.timestamp())
    return datetime.fromtimestamp(seconds, UTC)


def _entries(folder: Path, limit: int) -> list["os.DirEntry[str]"]:
    """Return at most `limit` entries by name; nothing of a folder that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(islice(entries, limit), key=lambda entry: entry.name)
    except OSError:
        return []


def _resources(path: str, entry: "os.DirEntry[str]") -> list[FileResource]:
    """Return the file, or nothing if it was deleted meanwhile."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return []
    return [FileResource(path=path, size_bytes=status.st_size, modified_at=modified_time(status))]


def open_below(root: Path, path: str) -> BinaryIO | None:
    """Open the regular file at `path` below `root` for reading; None if there is none without links or `..`."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    for number, part in enumerate(parts, start=1):
        kind = 0 if number == len(parts) else os.O_DIRECTORY
        try:
            # O_NONBLOCK: opening a pipe for reading would block.
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=handle)
        except (OSError, ValueError):
            return None
        finally:
            os.close(handle)
        handle = inner
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    return None


def irregular_kind(root: Path, path: str) -> str | None:
    """Return `link` or `special file` if there is one at the path or on the way to it, else None."""
    if not is_plain_path(path):
        return None
    current = root
    for part in path.split("/"):
        current /= part
        try:
            mode = current.lstat().st_mode
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(mode):
            return "link"
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return "special file"
    return None
