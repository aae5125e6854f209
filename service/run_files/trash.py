"""The trash among the runs: a removed path vanishes at once, and its content follows."""

import math
import os
from contextlib import suppress
from pathlib import Path

from service.as_owner.removal import remove_entry

_TRASH = ".trash"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(runs: Path, path: Path, name: str) -> None:
    """Rename a path into the trash, then remove it there. A missing path counts as removed; after an interruption,
    `empty_trash` continues.
    """
    trash = runs / _TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    if trash.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{trash} belongs to another account; an administrator must remove it")
    target = trash / name
    if os.path.lexists(path):
        if os.path.lexists(target):
            _remove(trash, name)
        path.rename(target)
    _remove(trash, name)


def empty_trash(runs: Path) -> None:
    """Finish the removals that an earlier service began."""
    trash = runs / _TRASH
    if trash.is_dir() and not trash.is_symlink() and trash.lstat().st_uid == os.geteuid():
        for name in os.listdir(trash):
            _remove(trash, name)


def _remove(trash: Path, name: str) -> None:
    """Remove an entry of the trash, of any depth; files that cannot be removed stay there.

    Each folder is moved to the top of the trash first. `shutil.rmtree` recurses before Python 3.13, so a job's folder
    of 1,000 levels would end the maintenance of all jobs.
    """
    top = os.open(trash, _FOLDER)
    try:
        names = [name]
        while names:
            with suppress(OSError):  # what is left is removed by a later `empty_trash`
                names += remove_entry(top, names.pop(), math.inf)
    finally:
        os.close(top)
