"""Run directories on disk: measuring them, and finding what is missing."""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from service.core.untrusted_files import ForeignFileError, UntrustedFiles
from trainyard.contract.layout import RunLayout

MAX_MEASURED = 200_000
"""Maximum number of entries of a run that are measured. A checkpoint has some per rank, and a program may write any
number."""
_MAX_DEPTH = 100
"""Levels of folders that are measured."""

log = structlog.get_logger("maintenance")


def is_missing(files: UntrustedFiles, run: RunLayout) -> bool:
    """Return whether a submitted job's run directory was moved or deleted. Its worker may have made a new directory."""
    try:
        files.status(run.spec)
    except (FileNotFoundError, ForeignFileError):
        # Without the folder of all runs, a filesystem is not mounted, which has an alarm of its own.
        return files.base.is_dir()
    except OSError:
        return False
    return False


def orphaned_forks(runs: Path, known: Container[str], before: float) -> list[str]:
    """Return the names of old run directories without a job that hold nothing but the links made for a fork."""
    names = []
    with os.scandir(runs) as entries:
        for entry in entries:
            if not entry.name.startswith("job_") or entry.name in known:
                continue
            with suppress(OSError):  # Another account may have made it, and may remove or close it.
                is_old = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before
                if is_old and os.listdir(entry.path) == ["origin"]:
                    names.append(entry.name)
    return names


def used_bytes(files: UntrustedFiles, run: RunLayout) -> int:
    """Return the bytes of the files of a run, of at most `MAX_MEASURED` entries. Links are not followed, and files of
    other accounts do not count.

    A fork's hard links to the checkpoint from which it starts are free: files in `origin` that have a link elsewhere.
    """
    size = 0
    links: Counter[tuple[int, int, int, int]] = Counter()
    """The links in `origin` to each file, by its device, number, number of links and size."""
    entries = files.walk(run.root, limit=MAX_MEASURED + 1, enter=lambda path: path.count("/") < _MAX_DEPTH)
    for number, (path, status) in enumerate(entries):
        if number == MAX_MEASURED:
            log.warning("a run has too many files to measure", run=run.root.name, limit=MAX_MEASURED)
            break
        if stat.S_ISDIR(status.st_mode) or not files.is_owned(status):
            continue
        if status.st_nlink > 1 and path.startswith(f"{run.origins.name}/"):
            links[status.st_dev, status.st_ino, status.st_nlink, status.st_size] += 1
        else:
            size += status.st_size
    return size + sum(file_size for (_, _, total, file_size), count in links.items() if count >= total)


def missing(files: UntrustedFiles, run: RunLayout, steps: Sequence[int]) -> list[int]:
    """Return the steps whose checkpoint folder does not exist; none if the checkpoints cannot all be listed."""
    try:
        names = set(files.list_names(run.checkpoints, MAX_MEASURED))
    except OSError:
        return []
    if len(names) == MAX_MEASURED:
        return []
    return [step for step in steps if run.checkpoint(step).root.name not in names]


def free_bytes(runs: Path) -> int:
    """Return the bytes that this account can still write below the runs folder."""
    return shutil.disk_usage(runs).free
