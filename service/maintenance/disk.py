"""Run directories on disk: measured, and removed by way of a name under which nobody looks for them."""

import os
import shutil
from collections.abc import Container, Sequence
from pathlib import Path

from trainyard.contract.layout import RunLayout

_TRASH = ".trash"


def discard(runs: Path, path: Path, name: str) -> None:
    """Take it out of sight in one step, then remove it. Missing is as good as removed; cut short, `empty` goes on."""
    trash = runs / _TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    target = trash / name
    if os.path.lexists(path):
        if os.path.lexists(target):
            shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def empty(runs: Path) -> None:
    """Remove what an earlier service had begun to."""
    trash = runs / _TRASH
    if trash.is_dir() and not trash.is_symlink():
        for left in trash.iterdir():
            shutil.rmtree(left, ignore_errors=True)


def unaccepted_forks(runs: Path, known: Container[str], before: float) -> list[str]:
    """Folders of jobs that nobody knows, with nothing in them but links made for a fork, and that not of late."""
    found = []
    with os.scandir(runs) as entries:
        for entry in entries:
            named = entry.name.startswith("job_") and entry.name not in known and entry.is_dir(follow_symlinks=False)
            if named and entry.stat(follow_symlinks=False).st_mtime < before and os.listdir(entry.path) == ["origin"]:
                found.append(entry.name)
    return found


def used_bytes(root: Path) -> int:
    """The sizes of all files below, links not followed. A file that another run shares counts where it is alone."""
    size, waiting = 0, [root]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                        continue
                    seen = entry.stat(follow_symlinks=False)
                    shared = seen.st_nlink > 1 and "origin" in Path(entry.path).relative_to(root).parts
                    size += 0 if shared else seen.st_size
        except OSError:
            continue  # it went while it was being looked at
    return size


def missing(run: RunLayout, steps: Sequence[int]) -> list[int]:
    """Those whose folder is not among the checkpoints; none where the folder cannot be looked into."""
    try:
        there = {entry.name for entry in os.scandir(run.checkpoints)}
    except OSError:
        return []
    return [step for step in steps if run.checkpoint(step).root.name not in there]


def free_bytes(runs: Path) -> int:
    """What is left for runs, as this account sees it."""
    return shutil.disk_usage(runs).free
