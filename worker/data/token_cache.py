"""The cache of tokenised data: folders named by their content, built aside and renamed, and checked when opened."""

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.layout import DATA_CACHE, DATA_CACHE_ENTRY, write_atomic
from worker.data.content_digest import digest_of_descriptor

log = logging.getLogger(__name__)

BUILDING = ".building-"
"""Prefix of the folders of entries that are being built."""
_USE_SECONDS = 3600.0
_ABANDONED_SECONDS = 86400.0
"""A folder that has not changed for so long belongs to a builder that was killed."""
UNUSED_SECONDS = 30 * 86400.0
"""An entry that no job has used for so long is removed when another entry is built."""


@dataclass(frozen=True)
class CacheEntry:
    """A complete entry."""

    path: Path
    facts: dict[str, Any]
    """Facts about it that its builder returned."""
    digests: dict[str, str]
    """The digests of its files."""

    @classmethod
    def load(cls, path: Path) -> "CacheEntry":
        """Return an entry without checking its files.

        Raises:
            OSError, ValueError, LookupError, TypeError, AttributeError: The record of the entry is not valid.
        """
        document = json.loads((path / DATA_CACHE_ENTRY).read_bytes())
        return cls(path, document["facts"], {name: digest for name, (_, digest) in document["files"].items()})

    def array(self, name: str, dtype: str) -> NDArray[Any]:
        """Return a file as an array in memory-mapped form, read-only: shape (elements,)."""
        path = self.path / name
        if path.stat().st_size == 0:
            return np.zeros(0, dtype=dtype)
        return np.memmap(path, dtype=dtype, mode="r")


class TokenCache:
    """A folder of entries, which belongs to a single account."""

    def __init__(self, root: Path | None = None, on_progress: Callable[[], None] = lambda: None) -> None:
        """`root` None: a temporary folder, removed when the cache is no longer referenced."""
        if root is None:
            root = Path(tempfile.mkdtemp(prefix="trainyard-tokens-"))
            weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self.root = root
        self.on_progress = on_progress
        self.entries: list[Path] = []
        """The entries that were opened, which must be kept."""

    def entry_or_build(self, key: str, build: Callable[[Path], dict[str, Any]]) -> CacheEntry:
        """Return the entry of a key; build it if the key has no valid entry.

        Args:
            key: 64 hex digits that differ for different contents.
            build: Writes the files of the entry into a folder, and returns facts about it as JSON data.
        """
        if (entry := self.open(key)) is not None:
            log.info("tokens %s: read from the cache", key[:12])
            return entry
        self.root.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._remove_abandoned()
        self._remove_unused()
        folder = self.root / f"{BUILDING}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o750)
        try:
            facts = build(folder)
            self._complete(folder, facts)
            self._publish(folder, self._path(key))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        entry = self.open(key)
        assert entry is not None, "the entry that was just built is valid"
        return entry

    def open(self, key: str) -> CacheEntry | None:
        """Return an entry whose files have the sizes and digests that its builder recorded; None if there is none."""
        path = self._path(key)
        try:
            document = json.loads((path / DATA_CACHE_ENTRY).read_bytes())
            for name, (size, digest) in document["files"].items():
                self._check(path / name, size, digest)
            entry = CacheEntry.load(path)
            os.utime(path / DATA_CACHE_ENTRY)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("tokens %s: the entry of the cache is not valid and is built again: %s", key[:12], error)
            return None
        self.entries.append(path)
        return entry

    def keep_used(self) -> None:
        """Mark the opened entries as used again and again while this process runs, so that they are not removed."""
        threading.Thread(target=self._mark_used, name="token-cache", daemon=True).start()

    def _mark_used(self) -> None:
        while True:
            time.sleep(_USE_SECONDS)
            for path in self.entries:
                with contextlib.suppress(OSError):
                    os.utime(path / DATA_CACHE_ENTRY)

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / key

    def _check(self, path: Path, size: int, digest: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_size != size:
                raise ValueError(f"{path.name} has {os.fstat(handle).st_size} bytes instead of {size}")
            if digest_of_descriptor(handle, size, self.on_progress) != digest:
                raise ValueError(f"the content of {path.name} has changed")
        finally:
            os.close(handle)

    def _complete(self, folder: Path, facts: dict[str, Any]) -> None:
        files = {}
        for path in sorted(folder.iterdir()):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fchmod(handle, 0o640)
                os.fsync(handle)
                size = os.fstat(handle).st_size
                files[path.name] = (size, digest_of_descriptor(handle, size, self.on_progress))
            finally:
                os.close(handle)
        write_atomic(folder / DATA_CACHE_ENTRY, json.dumps({"facts": facts, "files": files}), mode=0o640)

    def _publish(self, folder: Path, path: Path) -> None:
        """Rename a complete folder to its place. A valid entry that another process has put there stays."""
        path.parent.mkdir(mode=0o750, exist_ok=True)
        for _ in range(3):
            try:
                folder.rename(path)
                return
            except OSError:
                if self.open(path.name) is not None:
                    return
                self._remove(path)
        folder.rename(path)

    def _remove(self, path: Path) -> None:
        # Renamed before it is removed, so that nobody opens half of it.
        discarded = self.root / f"{BUILDING}{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):
            path.rename(discarded)
            shutil.rmtree(discarded, ignore_errors=True)

    def _remove_unused(self) -> None:
        for path in self.root.glob("??/" + "?" * 64):
            with contextlib.suppress(OSError):
                if time.time() - (path / DATA_CACHE_ENTRY).lstat().st_mtime > UNUSED_SECONDS:
                    self._remove(path)

    def _remove_abandoned(self) -> None:
        for path in self.root.glob(f"{BUILDING}*"):
            with contextlib.suppress(OSError):
                newest = max(one.lstat().st_mtime for one in (path, *path.iterdir()))
                if time.time() - newest > _ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def own_cache_folder(runs: Path) -> Path | None:
    """Return the folder below the runs for the cache of this process's account, made unless it exists; None if it is
    not this account's alone to write, or cannot be made.

    Another account could put examples of its own choice there, under the name of other content.
    """
    folder = runs / DATA_CACHE / str(os.getuid())
    try:
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o2750)
        status = folder.lstat()
    except OSError as error:
        log.warning("the cache of tokens cannot be used: %s", error)
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        log.warning("the cache of tokens cannot be used: %s can be written by others", folder)
        return None
    return folder
