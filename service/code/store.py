"""Archives of code as files named by their digest. The service never looks inside."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from service.core.errors import BodyTooLargeError, InvalidRequestError
from trainyard.contract.spec.user_code import MAX_CODE_BYTES, code_archive


def find(runs: Path, digest: str) -> Path | None:
    """The archive, if it is there. Being asked for keeps it for as long as if it had just come in."""
    place = code_archive(runs, digest)
    if not place.is_file():
        return None
    with suppress(FileNotFoundError):
        os.utime(place)
    return place if place.is_file() else None


def old(runs: Path, before: float) -> list[Path]:
    """What came in, and was last asked for, before this time; uploads that broke off too."""
    folder = code_archive(runs, "").parent
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        seen = [(entry.stat(follow_symlinks=False).st_mtime, Path(entry.path)) for entry in entries if entry.is_file()]
    return sorted(path for changed, path in seen if changed < before)


def digest_of(archive: Path) -> str:
    """Of a file's name; that of an upload which broke off is nobody's."""
    return f"sha256:{archive.stem}"


class Upload:
    """One archive as it comes in: counted and hashed, and put in its place only when it is what its name says."""

    def __init__(self, runs: Path, digest: str, *, limit: int = MAX_CODE_BYTES) -> None:
        self._place = code_archive(runs, digest)
        self._digest = digest
        self._limit = limit
        self._hash = hashlib.sha256()
        self._size = 0
        self._file: IO[bytes] | None = None

    def add(self, chunk: bytes) -> None:
        """Raises BodyTooLargeError beyond the limit."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise BodyTooLargeError(f"code is at most {self._limit} bytes; leave data out of it")
        if self._file is None:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(dir=self._place.parent, prefix=".upload-", delete=False)  # noqa: SIM115 (closed in keep or drop)
        self._hash.update(chunk)
        self._file.write(chunk)

    def keep(self) -> bool:
        """Put it in its place; False where the same was there before.

        Raises:
            InvalidRequestError: the bytes are not those of the digest.
        """
        found = f"sha256:{self._hash.hexdigest()}"
        if self._file is None or found != self._digest:
            raise InvalidRequestError(
                f"the body's digest is {found}, not the one in the path", param="digest", code="digest_mismatch"
            )
        new = not self._place.is_file()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._file.name, self._place)
        self._file = None
        return new

    def drop(self) -> None:
        """Leave nothing of an upload that was not kept."""
        if self._file is not None:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
