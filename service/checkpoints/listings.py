"""Pages of the files below a folder. Each page would otherwise read all folders again."""

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from threading import Lock

from service.checkpoints.program_output import ProgramOutput
from service.checkpoints.safe_files import list_files
from service.core.untrusted_files import UntrustedFiles
from trainyard.contract.wire.files import FileResource

_SECONDS = 60.0
_MAX_LISTINGS = 8
"""Listings that are held. Each has at most `MAX_LISTED` files."""

_Key = tuple[UntrustedFiles, Path, bool, ProgramOutput | None]


class FileListings:
    """Holds each listing of several pages for a minute, so that its pages are parts of the same list."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = Lock()
        self._listings: OrderedDict[_Key, tuple[float, list[FileResource]]] = OrderedDict()

    def page(
        self,
        files: UntrustedFiles,
        root: Path,
        *,
        hidden: bool,
        limit: int,
        after: str | None,
        output: ProgramOutput | None = None,
    ) -> tuple[list[FileResource], bool]:
        """Return a page of the regular files below a folder, by path, and whether more follow.

        Args:
            after: The last path of the previous page. Without it the folders are read anew.
            output: Files of a program that are listed too.
        """
        key = (files, root, hidden, output)
        listed = self._find(key) if after is not None else None
        if listed is None:
            listed = list_files(files, root, hidden=hidden)
            if output is not None:
                by_path = {file.path: file for file in [*listed, *output.list(files)]}
                listed = sorted(by_path.values(), key=attrgetter("path"))
            self._store(key, listed if len(listed) > limit else None)
        start = 0 if after is None else bisect_right(listed, after, key=attrgetter("path"))
        return listed[start : start + limit], len(listed) > start + limit

    def _find(self, key: _Key) -> list[FileResource] | None:
        with self._lock:
            made_at, files = self._listings.get(key, (0.0, None))
        return files if self._clock() - made_at < _SECONDS else None

    def _store(self, key: _Key, files: list[FileResource] | None) -> None:
        with self._lock:
            self._listings.pop(key, None)
            if files is not None:
                self._listings[key] = (self._clock(), files)
            if len(self._listings) > _MAX_LISTINGS:
                self._listings.popitem(last=False)
