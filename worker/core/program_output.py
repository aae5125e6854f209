"""What a program writes in its working directory: each attempt gets it from the one before."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.output_paths import is_checkpoint_file, is_output, output_paths

log = logging.getLogger(__name__)

_MAX_FILES = 10_000
"""Files below one path that are looked at."""


def take_output(layout: AttemptLayout, keep: Sequence[str]) -> None:
    """Move the program's files from earlier attempts to this one, whose code is complete, and record their paths.

    What an earlier attempt has at a path replaces what was uploaded there, which the earlier attempt had too.

    Args:
        keep: The paths that the spec names, in addition to the usual ones.

    Raises:
        OSError: They cannot be moved. The next attempt finds each path in one of the two folders.
    """
    sources, moved = _sources(layout), []
    paths = output_paths(keep)
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
    _link(layout)
    write_atomic(layout.output, json.dumps({"paths": paths, "named": list(keep), "moved": moved}))


def _link(layout: AttemptLayout) -> None:
    """Make the job's link lead to the working directory of this attempt."""
    link = RunLayout(layout.root.parent.parent).output
    new = link.with_name(f"{link.name}-{layout.root.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(layout.code.relative_to(link.parent))
    new.replace(link)


def has_output(layout: AttemptLayout) -> bool:
    """Return whether an earlier start of the program wrote files at the paths that the spec names."""
    record = _read_record(layout)
    if record is None:
        return False
    written_at = layout.output.stat().st_mtime_ns
    return any(
        is_output(path, record["moved"]) or status.st_mtime_ns > written_at
        for path in record["named"]
        for _, status in _files(layout.code / path)
    )


def newest_output(layout: AttemptLayout) -> float | None:
    """Return when the newest checkpoint in the working directory was written, in seconds since 1970; None without one.

    What is a checkpoint is known by the names of files: logs grow between checkpoints.
    """
    record = _read_record(layout)
    times = [
        status.st_mtime
        for path in (record["paths"] if record else ())
        for name, status in _files(layout.code / path)
        if is_checkpoint_file(name)
    ]
    return max(times, default=None)


def _sources(layout: AttemptLayout) -> list[Path]:
    """Return the working directories of the earlier attempts from the last one on that got all of its output.

    Those after it were killed before they got all of it. A path that one of them has was moved there, or is what was
    uploaded; in the first case, no attempt before it has the path, so that the oldest one decides.
    """
    sources: list[Path] = []
    for attempt in layout.earlier():
        sources.insert(0, attempt.code)
        if attempt.output.is_file():
            break
    return sources


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
