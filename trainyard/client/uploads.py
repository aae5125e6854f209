"""Uploads of data files in parts, which continue where an earlier call stopped. Pure, except for reading the file."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainyard.client.download import Progress, no_progress
from trainyard.client.errors import ConflictError, TrainyardError
from trainyard.client.retry import ATTEMPTS, backoff, is_transient
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.wire.data_files import UploadResource

PART_BYTES = 8 * 1024 * 1024
"""Bytes of a request. An interruption loses at most a part."""


@dataclass(frozen=True)
class LocalFile:
    """A file to upload."""

    path: Path
    name: str
    size: int
    digest: str
    """`sha256:` and the SHA-256 of the content."""

    def unfinished(self, uploads: Iterable[UploadResource], owner: str) -> UploadResource | None:
        """Return the user's upload of this file that an earlier call has begun."""
        same = (one for one in uploads if one.digest == self.digest and one.size_bytes == self.size)
        return next((one for one in same if one.created_by == owner), None)


def read_file(path: str | Path, name: str | None = None) -> LocalFile:
    """Read a whole file once, to know its digest. Raises SpecError: it is not a readable file, or is empty."""
    source = Path(path).expanduser()
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as error:
        raise SpecError([Problem(param="file", message=f"{str(path)!r}: {error.strerror}")]) from None
    if not size:
        raise SpecError([Problem(param="file", message=f"{str(path)!r} is empty")])
    return LocalFile(source, name or source.name, size, f"sha256:{digest}")


def read_part(file: LocalFile, offset: int) -> bytes:
    """Return the part of a file that begins at an offset."""
    with file.path.open("rb") as opened:
        opened.seek(offset)
        return opened.read(PART_BYTES)


class UploadProgress:
    """How far an upload is, and how often it failed without progress."""

    def __init__(self, file: LocalFile, progress: Progress = no_progress) -> None:
        self._file = file
        self._progress = progress
        self._failures = 0
        self._best = -1

    def report(self, upload: UploadResource) -> bool:
        """Report the received bytes, and return whether all are."""
        self._progress(self._file.name, upload.received_bytes, self._file.size)
        if upload.received_bytes > self._best:
            self._best, self._failures = upload.received_bytes, 0
        return upload.received_bytes >= self._file.size

    def pause_after(self, error: TrainyardError) -> float:
        """Return the seconds until the upload continues, or raise the error if a retry cannot help."""
        self._failures += 1
        # The bytes of a request whose response was lost may have been received.
        moved = isinstance(error, ConflictError) and error.code == "upload_offset"
        if not (moved or is_transient(error)) or self._failures >= ATTEMPTS:
            raise error
        return 0.0 if moved else backoff(self._failures)
