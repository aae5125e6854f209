"""Digests of the contents of files, computed by several threads, and remembered while a file is the same."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard.contract.layout import write_atomic
from worker.core.processes import usable_processors
from worker.data.data_files import DataFile, FileState, check_unchanged, opened

_BLOCK_BYTES = 2**24
_SETTLED_SECONDS = 5.0
"""A file that changed more recently may change again with the same timestamp, which is coarse on some systems."""


def digest_of_descriptor(handle: int, size: int, on_progress: Callable[[], None]) -> str:
    """Return the SHA-256 of the SHA-256 digests of the blocks of an open file, so that threads can share the work."""
    hashed = hashlib.sha256(str(size).encode())
    with ThreadPoolExecutor(usable_processors()) as threads:
        for block in threads.map(lambda start: _block_digest(handle, start), range(0, size, _BLOCK_BYTES)):
            hashed.update(block)
            on_progress()
    return hashed.hexdigest()


def _block_digest(handle: int, start: int) -> bytes:
    return hashlib.sha256(os.pread(handle, _BLOCK_BYTES, start)).digest()


class ContentDigests:
    """The digests of data files, remembered in a folder by the state of each file in the file system."""

    def __init__(self, folder: Path, on_progress: Callable[[], None]) -> None:
        self._folder = folder
        self._on_progress = on_progress

    def of(self, file: DataFile) -> str:
        """Return the digest of the content.

        Raises:
            RefusedError: The file cannot be read, or changed since it was found.
        """
        memo = self._folder / f"{_state_digest(file.state)}.json"
        try:
            remembered = json.loads(memo.read_bytes())["digest"]
            os.utime(memo)
        except (OSError, ValueError, LookupError, TypeError):
            pass
        else:
            return str(remembered)
        with opened(file) as handle:
            digest = digest_of_descriptor(handle.fileno(), file.state.size, self._on_progress)
            check_unchanged(file, handle)
        changed = max(file.state.modified_ns, file.state.changed_ns) / 1e9
        if time.time() - changed > _SETTLED_SECONDS:
            write_atomic(memo, json.dumps({"digest": digest}), mode=0o640)
        return digest


def _state_digest(state: FileState) -> str:
    numbers = (state.device, state.inode, state.size, state.modified_ns, state.changed_ns)
    return hashlib.sha256(" ".join(map(str, numbers)).encode()).hexdigest()
