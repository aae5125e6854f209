"""Reads below a folder that a job can write to: regular files only; links are never followed."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.wire.files import ArtifactResource, FileResource

MAX_LISTED = 10_000
"""The most files in a listing; further ones can still be downloaded by path."""

CHUNK = 256 * 1024


def list_artifacts(root: Path) -> list[ArtifactResource]:
    """Return the artifacts below a folder, by path: every regular file that is not hidden."""
    return [ArtifactResource(**file.model_dump(exclude={"object"})) for file in list_files(root, hidden=False)]


def list_files(root: Path, *, hidden: bool, irregular: list[str] | None = None) -> list[FileResource]:
    """Return the regular files below a folder, by path.

    Args:
        hidden: Include files whose names begin with a dot.
        irregular: Receives the paths of links and special files, which are left out.
    """
    files: list[FileResource] = []
    folders = [] if root.is_symlink() else [root]
    while folders and len(files) < MAX_LISTED:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and (hidden or not entry.name.startswith(".")):
                files.append(_resource(root, entry))
            elif irregular is not None and not entry.is_file(follow_symlinks=False):
                irregular.append(Path(entry.path).relative_to(root).as_posix())
    return sorted(files, key=lambda file: file.path)[:MAX_LISTED]


def _resource(root: Path, entry: "os.DirEntry[str]") -> FileResource:
    status = entry.stat(follow_symlinks=False)
    return FileResource(
        path=Path(entry.path).relative_to(root).as_posix(),
        size_bytes=status.st_size,
        modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
    )


def open_below(root: Path, path: str) -> int | None:
    """Return a descriptor of the regular file at `path` below `root`; None if there is none without links or `..`."""
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
        return handle
    os.close(handle)
    return None


def irregular_kind(root: Path, path: str) -> str | None:
    """Return `link` or `special file` if there is one at the path or on the way to it, else None."""
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
