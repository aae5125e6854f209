"""The folder in which torch keeps compiled code: one for each user and environment, without damaged libraries.

A process that is killed while it compiles may leave the beginning of a library, which no later process could load.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

log = logging.getLogger(__name__)

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_TRITON_VARIABLE = "TRITON_CACHE_DIR"
_WRITING_SECONDS = 60.0
"""A library without a lock that changed since is perhaps still being written by another process."""
_HEADER = struct.Struct("<16s2HI3QI6H")
"""The header of a library in the format ELF, of 64 bits."""


def use_compile_cache(compiler: str) -> None:
    """Let this process keep compiled code in the folder of its user and environment, unless the environment names
    another, and delete damaged libraries there."""
    folder = Path(os.environ.get(_VARIABLE) or cache_folder(compiler))
    if _VARIABLE not in os.environ:
        if not _is_own(folder):
            log.warning("%s is not a folder of this user alone, so that torch's own keeps compiled code", folder)
            return
        os.environ[_VARIABLE] = str(folder)
        os.environ.setdefault(_TRITON_VARIABLE, str(folder / "triton"))
    _delete_damaged(folder)


def cache_folder(compiler: str) -> Path:
    """Return the folder for this user and what decides about compiled code."""
    facts = (sys.version, sys.prefix, torch.__version__, str(torch.version.cuda), compiler)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"trainyard-compiled-{os.getuid()}-{digest}")


def _delete_damaged(folder: Path) -> None:
    """Delete the libraries that end before their last section, unless a process still writes them."""
    for library in sorted(folder.rglob("*.so")):
        if not _is_damaged(library):
            continue
        # Another rank may have replaced it in the meantime.
        with _no_writer(library, folder) as free:
            if free and _is_damaged(library):
                _delete(library)


def _delete(library: Path) -> None:
    try:
        library.unlink(missing_ok=True)
    except OSError as error:
        # The folder may be one that this user may only read.
        log.warning("%s is damaged and cannot be deleted: %s", library, error)
    else:
        log.warning("%s is damaged and is compiled again", library)


@contextlib.contextmanager
def _no_writer(library: Path, folder: Path) -> Iterator[bool]:
    """Return whether no process writes a library, and let none begin while this is open. torch has a lock for each; a
    killed process has none. Without a lock the library must be older than what a compiler takes to write it."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((folder / "locks" / f"{library.name.split('.')[0]}.lock").open("r+b"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        except OSError:
            free = _age(library) >= _WRITING_SECONDS
        yield free


def _age(library: Path) -> float:
    """Return the seconds since a library changed; 0 if it is gone."""
    try:
        return time.time() - library.stat().st_mtime
    except OSError:
        return 0.0


def _is_own(folder: Path) -> bool:
    """Create the folder, and return whether no other user may write to it."""
    # It may also be a file, or a link that leads nowhere.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _is_damaged(library: Path) -> bool:
    try:
        status = library.stat()
        with library.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError:
        # Another process has deleted it.
        return False
    if len(header) < _HEADER.size:
        return True
    magic, *_, sections, _, _, _, _, size, count, _ = _HEADER.unpack(header)
    return not magic.startswith(b"\x7fELF") or sections + size * count > status.st_size
