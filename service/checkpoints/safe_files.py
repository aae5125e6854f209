"""Reading below a folder that a job can write to: regular files only, and no link is ever followed."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard.contract.wire.files import ArtifactResource, FileResource

MAX_LISTED = 10_000
"""Files of one job; what a job leaves beyond that is not listed, but can be downloaded by name."""

CHUNK = 256 * 1024


@dataclass(frozen=True)
class Span:
    """The bytes of an open file that were asked for."""

    start: int
    end: int
    """Exclusive."""
    size: int


def list_artifacts(root: Path) -> list[ArtifactResource]:
    """Every regular file below the folder, by path."""
    return [ArtifactResource(**file.model_dump(exclude={"object"})) for file in list_files(root, hidden=False)]


def list_files(root: Path, *, hidden: bool, odd: list[str] | None = None) -> list[FileResource]:
    """Every regular file below the folder, by path; those whose names begin with a dot where they are wanted.

    Args:
        odd: Gets the paths of what is neither a regular file nor a folder, and so left out.
    """
    found: list[FileResource] = []
    waiting = [] if root.is_symlink() else [root]
    while waiting and len(found) < MAX_LISTED:
        folder = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif entry.is_file(follow_symlinks=False) and (hidden or not entry.name.startswith(".")):
                found.append(_resource(root, entry))
            elif odd is not None and not entry.is_file(follow_symlinks=False):
                odd.append(Path(entry.path).relative_to(root).as_posix())
    return sorted(found, key=lambda file: file.path)[:MAX_LISTED]


def _resource(root: Path, entry: "os.DirEntry[str]") -> FileResource:
    seen = entry.stat(follow_symlinks=False)
    return FileResource(
        path=Path(entry.path).relative_to(root).as_posix(),
        size_bytes=seen.st_size,
        modified_at=datetime.fromtimestamp(seen.st_mtime, UTC),
    )


def open_below(root: Path, path: str) -> int | None:
    """A descriptor of the regular file at `path` below `root`; None where there is none, or only by a link or `..`."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    for place, part in enumerate(parts):
        kind = 0 if place == len(parts) - 1 else os.O_DIRECTORY
        try:
            # Without waiting: opening a pipe for reading would.
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


def oddity(root: Path, path: str) -> str | None:
    """What stands at the path, or on the way there, that no run of ours makes: `link` or `special file`."""
    place = root
    for part in path.split("/"):
        place /= part
        try:
            mode = place.lstat().st_mode
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(mode):
            return "link"
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return "special file"
    return None


def span_of(header: str | None, size: int) -> Span | None:
    """What a Range header asks for: the whole file without one or with several; None where it lies outside."""
    whole = Span(0, size, size)
    unit, _, text = (header or "").partition("=")
    first, dash, last = text.strip().partition("-")
    if unit.strip().lower() != "bytes" or not dash or "," in text or not f"{first}{last}".isascii():
        return whole
    if not (first + last).isdigit() or len(first + last) > 40:
        return whole
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    return Span(start, end, size) if start < end else None


def read_span(handle: int, span: Span) -> Iterator[bytes]:
    """The span's bytes in pieces; closes the descriptor."""
    with os.fdopen(handle, "rb") as file:
        file.seek(span.start)
        left = span.end - span.start
        while left > 0 and (data := file.read(min(CHUNK, left))):
            left -= len(data)
            yield data
