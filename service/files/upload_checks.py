"""Checks of uploads while their parts arrive, each request for a limited time."""

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from service.db.models import Upload
from service.files.line_checks import LineChecker
from trainyard.contract.data_files import partial_file
from trainyard.contract.wire.data_files import FileFormat

_PROCESSOR_SECONDS = 2.0
"""Processor time of a request for the check; a later request continues."""
_SECONDS = 10.0
"""The same on the clock, for a slow disk."""
_CHUNK = 256 * 1024
_MAX_CHECKS = 100
"""Maximum number of a user's checks that are remembered. Checks of older uploads begin again."""


class UploadCheck:
    """How far an upload is checked.

    The received bytes never change, so they are read from the disk once, in order, whatever the parts were. After a
    restart of the service the check begins again with the next request.

    Attributes:
        lock: Held while the check advances, and while the file is completed.
        write_lock: Held while received bytes are appended.
        format: The format of the file; None until all of it is checked.
    """

    def __init__(self, path: Path, size: int, format: FileFormat | None) -> None:
        self.lock = threading.RLock()
        self.write_lock = threading.Lock()
        self.format: FileFormat | None = None
        self._path = path
        self._size = size
        self._lines = LineChecker(format)
        self._hash = hashlib.sha256()
        self._checked = self._hashed = 0

    @property
    def examples(self) -> int:
        return self._lines.examples

    @property
    def digest(self) -> str:
        """The digest of the checked bytes."""
        return f"sha256:{self._hash.hexdigest()}"

    def advance(self) -> bool:
        """Check received bytes for a limited time, and return whether the whole file is checked.

        Raises:
            InvalidRequestError: Lines cannot be used, or there is no example.
        """
        with self.lock:
            if self.format is None:
                with suppress(FileNotFoundError), self._path.open("rb") as file:
                    self._read(file)
            return self.format is not None

    def _read(self, file: BinaryIO) -> None:
        processor_end, end = time.thread_time() + _PROCESSOR_SECONDS, time.monotonic() + _SECONDS
        file.seek(self._checked)
        first = self._lines.number
        while chunk := file.read(min(_CHUNK, self._size - self._checked)):
            self._lines.feed(chunk)
            self._hash.update(memoryview(chunk)[max(0, self._hashed - self._checked) :])
            self._checked += len(chunk)
            self._hashed = max(self._hashed, self._checked)
            # At least a line, or no request would ever finish a long line.
            if self._lines.number > first and (time.thread_time() > processor_end or time.monotonic() > end):
                break
        if self._checked >= self._size:
            self.format = self._lines.finish()
        else:
            # A cut line is read again, so that between requests no check has lines in memory.
            self._checked -= self._lines.drop_rest()
            self._lines.refuse_bad()


class UploadChecks:
    """The checks of all users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, OrderedDict[str, UploadCheck]] = {}

    def of(self, runs: Path, upload: Upload) -> UploadCheck:
        """Return the check of an upload."""
        with self._lock:
            checks = self._owners.setdefault(upload.created_by, OrderedDict())
            if upload.id not in checks:
                format: FileFormat | None = upload.format  # type: ignore[assignment]  # Only formats are stored.
                checks[upload.id] = UploadCheck(partial_file(runs, upload.id), upload.size_bytes, format)
            checks.move_to_end(upload.id)
            if len(checks) > _MAX_CHECKS:
                checks.popitem(last=False)
            return checks[upload.id]

    def forget(self, upload: Upload) -> None:
        """Forget the check of an upload that is complete or was removed."""
        with self._lock:
            checks = self._owners.get(upload.created_by, OrderedDict())
            checks.pop(upload.id, None)
            if not checks:
                self._owners.pop(upload.created_by, None)
