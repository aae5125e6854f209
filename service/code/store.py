"""Archives of uploaded code: files named by their digest. The service never opens them."""

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from service.core.errors import BodyTooLargeError, InvalidRequestError
from trainyard.contract.spec.user_code import MAX_CODE_BYTES, code_archive


def find_archive(runs: Path, digest: str) -> Path | None:
    """Return the archive with this digest, or None. Its age for the clean-up starts again at each request."""
    path = code_archive(runs, digest)
    if not path.is_file():
        return None
    with suppress(FileNotFoundError):
        os.utime(path)
    return path if path.is_file() else None


class Upload:
    """An archive that is being received: hashed as it arrives, and stored only if its digest is the announced
    digest."""

    def __init__(self, runs: Path, digest: str, *, limit: int = MAX_CODE_BYTES) -> None:
        self._path = code_archive(runs, digest)
        self._digest = digest
        self._limit = limit
        self._hash = hashlib.sha256()
        self._size = 0
        self._file: IO[bytes] | None = None

    def add(self, chunk: bytes) -> None:
        """Append received bytes. Raises BodyTooLargeError beyond the limit."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise BodyTooLargeError(f"code is limited to {self._limit} bytes; do not include data")
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".upload-", delete=False)  # noqa: SIM115 (closed in store or discard)
        self._hash.update(chunk)
        self._file.write(chunk)

    def store(self) -> bool:
        """Move the archive to its final path; return False if it was stored before.

        Raises:
            InvalidRequestError: the body has another digest.
        """
        digest = f"sha256:{self._hash.hexdigest()}"
        if self._file is None or digest != self._digest:
            raise InvalidRequestError(
                f"the body's digest is {digest}, not the one in the path", param="digest", code="digest_mismatch"
            )
        new = not self._path.is_file()
        self._file.flush()
        # Where jobs run as their owners, everybody can enter the folder, and nobody can list it.
        if self._path.parent.stat().st_mode & stat.S_IXOTH:
            os.fchmod(self._file.fileno(), 0o644)
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._file.name, self._path)
        self._file = None
        return new

    def discard(self) -> None:
        """Remove an upload that was not stored."""
        if self._file is not None:
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
