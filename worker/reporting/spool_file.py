"""The spool file of this execution, open for appending."""

import os
import shutil
from contextlib import suppress
from pathlib import Path


class SpoolFile:
    """Appends whole records. If the file or its folder is deleted, it is restored with all records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that a record that could not be written does not appear later by itself.
        self._file = path.open("a+b", buffering=0)

    def append(self, record: bytes) -> None:
        """Append the whole record or nothing.

        Raises:
            OSError: It could not be written.
        """
        self._restore()
        start = os.fstat(self._file.fileno()).st_size
        try:
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            raise

    def sync(self) -> None:
        """Return when all records are durable.

        Raises:
            OSError: The records are not durable.
        """
        self._restore()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):
            self.sync()
        self._file.close()

    def _restore(self) -> None:
        """Copy the open file to its path if another file or none is there, as after `rm -r spool`."""
        if self._is_in_place() or not self._path.parent.parent.is_dir():
            # Without the attempt's folder nothing would read a copy; if the folder was moved, the open file is in it.
            return
        self._path.parent.mkdir(exist_ok=True)
        part = self._path.with_suffix(".restored")
        self._file.seek(0)
        with part.open("wb") as copy:
            shutil.copyfileobj(self._file, copy)
        os.replace(part, self._path)
        restored = self._path.open("a+b", buffering=0)
        self._file.close()
        self._file = restored

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False
