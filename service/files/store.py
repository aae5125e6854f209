"""The contents of data files, named by their digest, and the received parts of unfinished uploads."""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.core.errors import BodyTooLargeError, ConflictError
from service.files.line_checks import LineChecker
from trainyard.contract.data_files import data_file, partial_file
from trainyard.contract.wire.data_files import FileFormat

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def has_content(runs: Path, digest: str) -> bool:
    """Return whether the content is stored. Its age for the clean-up starts again at each request."""
    path = data_file(runs, digest)
    with suppress(FileNotFoundError):
        os.utime(path)
    return path.is_file()


def remove_unused(folder: Path, before: float, load_used: Callable[[], set[Path]]) -> int:
    """Remove the unused files of a folder that last changed before a time, in seconds since the epoch.

    Args:
        load_used: Returns the paths that are in use.

    Returns:
        The number of the files.
    """
    if not (old := _old_files(folder, before)):
        return 0
    used = load_used()
    # Listed again: a file that was requested since then is no longer old.
    unused = old & _old_files(folder, before) - used
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


def _old_files(folder: Path, before: float) -> set[Path]:
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        files = [(entry.stat(follow_symlinks=False).st_mtime, Path(entry.path)) for entry in entries if entry.is_file()]
    return {path for modified, path in files if modified < before}


class Incoming:
    """A file that a request sends: hashed and checked as it arrives, and written to the disk."""

    def __init__(self, runs: Path, upload_id: str, format: FileFormat | None, *, limit: int) -> None:
        """
        Args:
            limit: Maximum size in bytes.
        """
        self._runs = runs
        self._partial = partial_file(runs, upload_id)
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(self._partial, _WRITE | os.O_EXCL, 0o600), "wb")
        self._lines = LineChecker(format)
        self._hash = hashlib.sha256()
        self._limit = limit
        self.size = 0

    @property
    def examples(self) -> int:
        return self._lines.examples

    def add(self, chunk: bytes) -> None:
        """Append received bytes.

        Raises:
            BadLineError: Lines cannot be used, and others are not checked any more.
            BodyTooLargeError: The file exceeds the limit.
        """
        self.size += len(chunk)
        if self.size > self._limit:
            raise BodyTooLargeError(
                f"one request can upload {self._limit} bytes; upload a larger file in parts (`trainyard files upload` "
                "and `POST /v1/uploads` do)",
                param="file",
                code="file_too_large",
            )
        self._lines.feed(chunk)
        # A file with a bad line is not stored, and received on to count the others.
        if not self._lines.bad:
            self._hash.update(chunk)
            self._file.write(chunk)

    def store(self) -> tuple[str, FileFormat]:
        """Move the file to its final path, and return its digest and its format.

        Raises:
            InvalidRequestError: Lines cannot be used, or there is no example.
        """
        format = self._lines.finish()
        digest = f"sha256:{self._hash.hexdigest()}"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _publish(self._runs, self._partial, digest)
        return digest, format

    def discard(self) -> None:
        """Remove the received bytes unless they were stored."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


class Parts:
    """The received bytes of an upload in parts."""

    def __init__(self, runs: Path, upload_id: str) -> None:
        self._runs = runs
        self._partial = partial_file(runs, upload_id)

    @property
    def received(self) -> int:
        """Number of bytes on the disk."""
        try:
            return self._partial.lstat().st_size
        except FileNotFoundError:
            return 0

    def open(self, offset: int, limit: int, lock: threading.Lock) -> "PartWriter":
        """Return the writer of a part that begins at an offset.

        Args:
            limit: The announced size of the file in bytes.
            lock: The lock of all writers of this upload.

        Raises:
            ConflictError: The part would leave a gap, or repeat received bytes.
        """
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._partial, _WRITE, 0o600)
        try:
            _check_offset(handle, offset)
        except ConflictError:
            os.close(handle)
            raise
        return PartWriter(handle, offset, limit, lock)

    def publish(self, digest: str) -> None:
        """Give the whole file, which no writer can change any more, the name of its digest as well."""
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())
        # The name is unique to this request: another request may publish the same upload.
        checked = self._partial.with_name(f"{self._partial.name}-{secrets.token_hex(4)}")
        try:
            self._link(checked)
            _publish(self._runs, checked, digest)
        finally:
            checked.unlink(missing_ok=True)  # It stays if it already was the same file as the published one.

    def _link(self, other: Path) -> None:
        """Give the file another name; on a filesystem without links, copy it."""
        try:
            os.link(self._partial, other)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            shutil.copyfile(self._partial, other)

    def discard(self) -> None:
        self._partial.unlink(missing_ok=True)


class PartWriter:
    """Appends a part of an upload. Received bytes never change: if two requests write at once, the second finds that
    the offset has changed, at any of its chunks."""

    def __init__(self, handle: int, offset: int, limit: int, lock: threading.Lock) -> None:
        self._handle = handle
        self._end = offset
        self._limit = limit
        self._lock = lock

    def add(self, chunk: bytes) -> None:
        """Append received bytes.

        Raises:
            BodyTooLargeError: They exceed the announced size.
            ConflictError: Another request has appended to the upload.
        """
        if self._end + len(chunk) > self._limit:
            raise BodyTooLargeError(f"the part exceeds the announced size, {self._limit} bytes", param="size_bytes")
        with self._lock, _locked(self._handle):
            _check_offset(self._handle, self._end)
            view = memoryview(chunk)
            while view:
                written = os.pwrite(self._handle, view, self._end)
                self._end += written
                view = view[written:]

    def sync(self) -> None:
        """Make the received bytes durable."""
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def _check_offset(handle: int, offset: int) -> None:
    """Raise ConflictError unless the file ends at the offset."""
    if (received := os.fstat(handle).st_size) != offset:
        message = f"is {offset}, but {received} bytes have been received; continue there"
        raise ConflictError(message, param="offset", code="upload_offset")


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    """Lock a file against other processes of the service, where its filesystem has locks."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)


def _publish(runs: Path, partial: Path, digest: str) -> None:
    path = data_file(runs, digest)
    # Where jobs run as their owners, everybody can enter the folder, and nobody can list it.
    if path.parent.stat().st_mode & stat.S_IXOTH:
        partial.chmod(0o644)
    os.utime(partial)
    os.replace(partial, path)
