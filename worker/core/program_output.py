"""Output of a program in its working directory: each attempt gets it from the previous attempt."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.output_paths import is_checkpoint_file, is_output, named_paths, output_paths

log = logging.getLogger(__name__)

_MAX_FILES = 10_000
"""Maximum files to look at below a path."""


def take_output(layout: AttemptLayout, keep: Sequence[str], folder: str = "") -> None:
    """Move the program's files from earlier attempts to this attempt, whose code is complete; record their paths.

    An earlier attempt's file or folder replaces the uploaded file at its path, which the earlier attempt had too.

    Args:
        keep: The paths that the spec names, in addition to the usual ones.
        folder: The folder in which the program starts.

    Raises:
        OSError: The files cannot be moved. The next attempt finds each path in either folder.
    """
    sources, moved = _sources(layout), []
    paths = output_paths(keep, folder)
    for path in paths:
        source = next((code / path for code in sources if os.path.lexists(code / path)), None)
        if source is None:
            continue
        target = layout.code / path
        _remove(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        moved.append(path)
    if moved:
        log.info("the working directory has what earlier attempts left in %s", ", ".join(moved))
    record = {"paths": paths, "named": named_paths(keep, folder), "moved": moved, "inode": layout.code.stat().st_ino}
    write_atomic(layout.output, json.dumps(record))


def enter_work(layout: AttemptLayout) -> None:
    """Make this attempt's directory, which has got earlier attempts' output, the job's working directory.

    The previous working directory becomes `code` of its attempt. A second call does nothing.

    Raises:
        OSError: A directory cannot be renamed. A later call, or the next attempt, goes on from there.
    """
    if not layout.code.is_dir():
        return
    if layout.work.is_dir():
        owner = next((one for one in layout.earlier() if _in_work(one)), None)
        if owner is None:
            raise FileExistsError(f"{layout.work} belongs to no attempt of this job; rename it")
        layout.work.rename(owner.code)
    layout.code.rename(layout.work)


def sees_work(layout: AttemptLayout) -> bool:
    """Return whether this node has the attempt's working directory at its path.

    A client of a network filesystem remembers for some time which directory has a name. Reading the folder above
    shortens that.
    """
    record = _read_record(layout)
    try:
        os.listdir(layout.work.parent)
        return record is not None and layout.work.stat().st_ino == record["inode"]
    except FileNotFoundError:
        return False


def has_output(layout: AttemptLayout) -> bool:
    """Return whether an earlier start of the program wrote files at the paths that the spec names."""
    record = _read_record(layout)
    if record is None:
        return False
    written_at = layout.output.stat().st_mtime_ns
    return any(
        is_output(path, record["moved"]) or status.st_mtime_ns > written_at
        for path in record["named"]
        for _, status in _files(layout.work / path)
    )


def newest_output(layout: AttemptLayout) -> float | None:
    """Return when the newest checkpoint in the working directory was written, in seconds since 1970; None without any.

    Checkpoints are recognised by the names of files, since logs grow between checkpoints.
    """
    record = _read_record(layout)
    times = [
        status.st_mtime
        for path in (record["paths"] if record else ())
        for name, status in _files(layout.work / path)
        if is_checkpoint_file(name)
    ]
    return max(times, default=None)


def _sources(layout: AttemptLayout) -> list[Path]:
    """Return the working directories of earlier attempts, oldest first, from the last attempt that got all output.

    Later attempts were killed before they got all of it. A path in such an attempt was moved there or uploaded. If it
    was moved, no older attempt has it, so the oldest directory with the path decides.
    """
    sources: list[Path] = []
    for attempt in layout.earlier():
        sources.insert(0, layout.work if _in_work(attempt) else attempt.code)
        if attempt.output.is_file():
            break
    return sources


def _in_work(attempt: AttemptLayout) -> bool:
    """Return whether the attempt's directory became the job's working directory, and still is."""
    return attempt.output.is_file() and not attempt.code.exists()


def _read_record(layout: AttemptLayout) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(layout.output.read_bytes())
    except FileNotFoundError:
        return None
    return document


def _files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files at or below a path, with their names. Links are not followed."""
    paths = (
        [str(root)] if root.is_file() else (os.path.join(at, name) for at, _, names in os.walk(root) for name in names)
    )
    for _, path in zip(range(_MAX_FILES), paths, strict=False):
        try:
            yield os.path.basename(path), os.stat(path, follow_symlinks=False)
        except OSError:
            continue


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
