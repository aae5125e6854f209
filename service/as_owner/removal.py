"""Removing the contents of a run folder, as its owner, in bounded time and at any depth. Links are not followed."""

import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

_TRASH = ".removed-"
"""Prefix of the names that paths get while they are removed; a later removal finishes them."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(run: Path, paths: Sequence[PurePosixPath | None], *, until: float) -> list[str]:
    """Remove paths below a run folder, and the remains of an earlier call. A missing path counts as removed.

    Each path vanishes at once, by a rename within the run folder, and its content follows.

    Args:
        paths: Relative to the run folder; None: the folder itself.
        until: Time on the monotonic clock at which the removal stops.

    Returns:
        The names in the run folder that are still to be removed, at most ten.

    Raises:
        OSError: the run folder, or a folder on the way to a path, is a link or cannot be opened.
    """
    try:
        top = os.open(run, _FOLDER)
    except FileNotFoundError:
        return []
    try:
        if None in paths:
            with suppress(OSError):
                os.fchmod(top, 0o700)
        for path in paths:
            _discard(top, path)
        names = [name for name in os.listdir(top) if name.startswith(_TRASH)]
        while names and time.monotonic() < until:
            names += remove_entry(top, names.pop(), until)
        left = [name for name in os.listdir(top) if name.startswith(_TRASH)]
    finally:
        os.close(top)
    if None in paths and not left:
        try:
            run.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return ["."]
    return left[:10]


def _discard(top: int, path: PurePosixPath | None) -> None:
    """Move a path to the top of the run folder, under a name that marks it as removed."""
    if path is None:
        for name in os.listdir(top):
            if not name.startswith(_TRASH):
                with suppress(FileNotFoundError):
                    os.rename(name, _new_name(), src_dir_fd=top, dst_dir_fd=top)
        return
    folder = os.dup(top)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        os.rename(path.name, _new_name(), src_dir_fd=folder, dst_dir_fd=top)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)


def remove_entry(top: int, name: str, until: float) -> list[str]:
    """Remove an entry of the folder `top`, and return the new names there of the folders that were in it."""
    moved: list[str] = []
    try:
        folder = _open_folder(top, name)
    except OSError:
        with suppress(OSError):
            os.unlink(name, dir_fd=top)  # a link or a file
        return moved
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() >= until:
                    break
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        # Moved to the top first, so that neither the depth nor the length of a path has a limit.
                        new_name = _new_name()
                        _move_folder(folder, entry.name, top, new_name)
                        moved.append(new_name)
                    else:
                        os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    with suppress(OSError):
        os.rmdir(name, dir_fd=top)
    return moved


def _open_folder(top: int, name: str) -> int:
    """Open a folder, whose owner may have taken the rights to it away."""
    try:
        handle = os.open(name, _FOLDER, dir_fd=top)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=top)
        return os.open(name, _FOLDER, dir_fd=top)
    with suppress(OSError):
        os.fchmod(handle, 0o700)
    return handle


def _move_folder(source: int, name: str, target: int, new_name: str) -> None:
    """Move a folder; without write permission to it, its entry `..` cannot be changed."""
    try:
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=source)
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)


def _new_name() -> str:
    return _TRASH + secrets.token_hex(12)
