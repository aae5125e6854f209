"""Listings and downloads of the files of jobs: regular files whose paths a URL can name."""

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from service.core.untrusted_files import IrregularFileError, UntrustedFiles
from trainyard.contract.base import MAX_TIME, MIN_TIME
from trainyard.contract.output_paths import is_output
from trainyard.contract.wire.files import FileResource

MAX_LISTED = 10_000
"""Maximum number of files in a listing; further files can still be downloaded by path."""

CHUNK = 256 * 1024

_MAX_ENTRIES = 50_000
"""Maximum number of entries, over all folders, that a listing reads."""
_MAX_PATH = 1024
"""Characters of a path below a folder."""


def list_files(
    files: UntrustedFiles,
    root: Path,
    *,
    hidden: bool,
    irregular: list[str] | None = None,
    below: Sequence[str] | None = None,
) -> list[FileResource]:
    """Return the regular files below a folder, by path.

    Args:
        hidden: Include files and folders whose names begin with a dot.
        below: Lists only these paths and the files below them; None: everything.
        irregular: Receives the paths of links, special files and files of other accounts, which are left out.
    """

    def enter(path: str) -> bool:
        is_near = below is None or is_output(path, below) or any(one.startswith(f"{path}/") for one in below)
        return is_near and len(path) <= _MAX_PATH and (hidden or not _is_hidden(path))

    listed: list[FileResource] = []
    for path, status in files.walk(root, limit=_MAX_ENTRIES, enter=enter):
        is_owned, is_plain = files.is_owned(status), is_plain_path(path)
        if below is not None and not is_output(path, below):
            continue
        if (_is_hidden(path) and not hidden) or (stat.S_ISDIR(status.st_mode) and is_owned and len(path) <= _MAX_PATH):
            continue
        if stat.S_ISREG(status.st_mode) and is_owned and is_plain:
            listed.append(FileResource(path=path, size_bytes=status.st_size, modified_at=modified_time(status)))
            if len(listed) == MAX_LISTED:
                break
        elif irregular is not None:
            irregular.append(path.encode(errors="backslashreplace").decode())
    return sorted(listed, key=lambda file: file.path)


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
    """Return the time of the last change. A job can set any time, which is limited to the range of the API."""
    seconds = min(max(status.st_mtime, MIN_TIME.timestamp()), MAX_TIME.timestamp())
    return datetime.fromtimestamp(seconds, UTC)


def open_below(files: UntrustedFiles, root: Path, path: str) -> BinaryIO | None:
    """Open the regular file at `path` below `root` for reading; None if there is none.

    Raises:
        IrregularFileError: there is a link, a special file or something of another account instead.
    """
    if any(part in ("", ".", "..") for part in path.split("/")):
        return None
    try:
        return files.open_file(root / path)
    except IrregularFileError as error:
        if error.kind == "folder":
            return None
        raise
    except OSError:
        return None


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")
