"""Run directories on disk: measuring them, and removing them by way of a trash folder."""

import os
import shutil
from collections.abc import Container, Sequence
from pathlib import Path

from trainyard.contract.layout import RunLayout

_TRASH = ".trash"


def discard(runs: Path, path: Path, name: str) -> None:
    """Rename a path into the trash, then remove it there. A missing path counts as removed; after an interruption,
    `empty_trash` continues.
    """
    trash = runs / _TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    target = trash / name
    if os.path.lexists(path):
        if os.path.lexists(target):
            shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def empty_trash(runs: Path) -> None:
    """Finish the removals that an earlier service began."""
    trash = runs / _TRASH
    if trash.is_dir() and not trash.is_symlink():
        for entry in trash.iterdir():
            shutil.rmtree(entry, ignore_errors=True)


def orphaned_forks(runs: Path, known: Container[str], before: float) -> list[str]:
    """Return the names of old run directories without a job that hold nothing but the links made for a fork."""
    names = []
    with os.scandir(runs) as entries:
        for entry in entries:
            unknown = entry.name.startswith("job_") and entry.name not in known and entry.is_dir(follow_symlinks=False)
            if unknown and entry.stat(follow_symlinks=False).st_mtime < before and os.listdir(entry.path) == ["origin"]:
                names.append(entry.name)
    return names


def used_bytes(root: Path) -> int:
    """Return the bytes of all files below a folder. Links are not followed; hard links to a fork's origin are free."""
    size, folders = 0, [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                        continue
                    status = entry.stat(follow_symlinks=False)
                    shared = status.st_nlink > 1 and "origin" in Path(entry.path).relative_to(root).parts
                    size += 0 if shared else status.st_size
        except OSError:
            continue  # removed in the meantime
    return size


def missing(run: RunLayout, steps: Sequence[int]) -> list[int]:
    """Return the steps whose checkpoint folder does not exist; none if the checkpoints cannot be listed."""
    try:
        names = {entry.name for entry in os.scandir(run.checkpoints)}
    except OSError:
        return []
    return [step for step in steps if run.checkpoint(step).root.name not in names]


def free_bytes(runs: Path) -> int:
    """Return the bytes that this account can still write below the runs folder."""
    return shutil.disk_usage(runs).free
