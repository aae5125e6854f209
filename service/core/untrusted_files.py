"""Reading files that a job, or another account of this machine, may have put below the runs folder.

Every folder on the way is opened by itself and without following links, so that nothing that is replaced meanwhile
leads elsewhere. If the owner is given, files and folders of another account do not count: hard links, and folders made
under another job's id.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from service.core.settings import Settings

_COMMON = os.O_NOFOLLOW | os.O_CLOEXEC
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | _COMMON
"""A folder that is passed: the filesystem is not asked to open it, and its owner need not let it be listed."""
_LISTED = os.O_RDONLY | os.O_DIRECTORY | _COMMON
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _COMMON
"""O_NONBLOCK: opening a pipe would wait for a writer."""
_LINE_BYTES, _LINE_CHARACTERS = 4096, 500


class IrregularFileError(OSError):
    """Instead of a regular file of the account, the path names a link, a special file, a folder or something of another
    account; or an entry of these kinds, except for a folder, is on the way to it."""

    def __init__(self, path: Path, kind: str):
        super().__init__(errno.ELOOP, f"is a {kind}, which is not read", str(path))
        self.kind = kind
        """`link`, `special file`, `folder` or `file of another account`."""


class ForeignFileError(IrregularFileError):
    """The entry at the path, or an entry on the way to it, belongs to another account."""

    def __init__(self, path: Path):
        super().__init__(path, "file of another account")


@dataclass(frozen=True)
class UntrustedFiles:
    """The files below a trusted folder, which jobs or other accounts can change. Paths that the methods take are below
    it."""

    base: Path
    owner: int | None = None
    """The uid to which every file and folder below the trusted folder must belong; None: any."""

    def open_file(self, path: Path) -> BinaryIO:
        """Open a regular file for reading.

        Raises:
            IrregularFileError: the path leads to a folder, or to or over anything else but a folder of the owner.
            OSError: the path cannot be read.
        """
        handle = self._open(path, _FILE)
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
        raise IrregularFileError(path, "folder" if stat.S_ISDIR(mode) else "special file")

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a regular file from `offset`. Raises OSError: as `open_file`."""
        with self.open_file(path) as file:
            file.seek(offset)
            return file.read(size)

    def last_line(self, path: Path) -> str:
        """Return the last line of a log, at most 500 printable characters; empty if it cannot be read."""
        try:
            with self.open_file(path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LINE_BYTES))
                lines = file.read(_LINE_BYTES).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return "".join(c if c.isprintable() else "?" for c in lines[-1])[:_LINE_CHARACTERS] if lines else ""

    def status(self, path: Path) -> os.stat_result:
        """Return the status of whatever is at the path; of a link, its own.

        Raises:
            OSError: as `open_file`, but not for a link or a special file at the path itself.
        """
        folder = self._open(path.parent, _ON_THE_WAY)
        try:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)
        if not self.is_owned(status):
            raise ForeignFileError(path)
        return status

    def list_names(self, folder: Path, limit: int) -> list[str]:
        """Return the names of at most `limit` entries of a folder, in order.

        Raises:
            IrregularFileError: the path leads to or over a link, or to a folder of another account.
            OSError: the folder cannot be read.
        """
        handle = self._open(folder, _LISTED)
        try:
            with os.scandir(handle) as entries:
                return sorted(entry.name for entry in islice(entries, limit))
        finally:
            os.close(handle)

    def walk(self, folder: Path, *, limit: int, enter: Callable[[str], bool]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the entries of a folder and of those below it: their paths relative to it, and their status.

        Links are yielded and not followed; folders of other accounts are yielded and not entered. Entries that cannot
        be read, or are removed meanwhile, are left out. One folder is open at a time, however deep the folders are.

        Args:
            limit: The most entries of all folders.
            enter: Whether to enter the folder at a path.
        """
        try:
            position = _Position(self._open(folder, _LISTED))
        except OSError:
            return
        remaining = limit
        try:
            while position.levels:
                level = position.levels[-1]
                if level.folders is None:
                    level.folders = []
                    entries = _sorted_entries(position.handle, remaining)
                    remaining -= len(entries)
                    for path, status in ((level.prefix + name, status) for name, status in entries):
                        yield path, status
                        if stat.S_ISDIR(status.st_mode) and enter(path):
                            level.folders.append(path)
                elif level.folders:
                    path = level.folders.pop()
                    with suppress(OSError):
                        position.descend(self._open_in(position.handle, folder / path, _LISTED), path)
                elif not position.ascend():
                    return
        finally:
            os.close(position.handle)

    def is_owned(self, status: os.stat_result) -> bool:
        """Return whether the file with this status may belong to the job."""
        return self.owner is None or status.st_uid == self.owner

    def _open(self, path: Path, flags: int) -> int:
        """Open the path with the flags, folder by folder. The trusted folder itself may be reached over links."""
        parts = path.relative_to(self.base).parts
        handle = os.open(self.base, (_ON_THE_WAY if parts else flags) & ~os.O_NOFOLLOW)
        current = self.base
        for number, part in enumerate(parts, start=1):
            current /= part
            try:
                inner = self._open_in(handle, current, flags if number == len(parts) else _ON_THE_WAY)
            finally:
                os.close(handle)
            handle = inner
        return handle

    def _open_in(self, folder: int, path: Path, flags: int) -> int:
        """Open the entry of an open folder that has the last name of a path."""
        try:
            if path.name == "..":
                raise ValueError("leads out of the folder")
            handle = os.open(path.name, flags, dir_fd=folder)
        except ValueError as error:  # also a null byte, or a character that no file name can have
            raise FileNotFoundError(errno.ENOENT, str(error), repr(path)) from None
        except OSError as error:
            raise _explain(error, folder, path) from None
        if not self.is_owned(os.fstat(handle)):
            os.close(handle)
            raise ForeignFileError(path)
        return handle


def files_of_job(settings: Settings, unix_uid: int | None) -> UntrustedFiles:
    """Return access to the files of a job that runs as this account; None: as the service's."""
    if unix_uid is None and settings.run_as == "owner":
        unix_uid = os.geteuid()  # a job of before: in the runs folder, every account can make folders now
    return UntrustedFiles(settings.runs, unix_uid)


def files_of_attempt(folder: Path, unix_uid: int | None = None) -> UntrustedFiles:
    """Return access to the files of the job whose attempt has this folder, `<runs>/<job>/attempts/<name>`."""
    return UntrustedFiles(folder.parents[2], unix_uid)


def _explain(error: OSError, folder: int, path: Path) -> OSError:
    """Return the error of opening an entry of a folder: an IrregularFileError if a link or a special file caused it."""
    error.filename = str(path)
    if error.errno == errno.ELOOP:
        return IrregularFileError(path, "link")
    if error.errno not in (errno.ENOTDIR, errno.ENXIO):
        return error
    try:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError as gone:
        return gone
    if stat.S_ISLNK(mode):
        return IrregularFileError(path, "link")
    return error if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else IrregularFileError(path, "special file")


def _sorted_entries(folder: int, limit: int) -> list[tuple[str, os.stat_result]]:
    """Return the names and the status of at most `limit` entries of an open folder, by name."""
    entries: list[tuple[str, os.stat_result]] = []
    with suppress(OSError), os.scandir(folder) as listed:
        for entry in islice(listed, limit):
            with suppress(FileNotFoundError):
                entries.append((entry.name, entry.stat(follow_symlinks=False)))
    return sorted(entries, key=lambda entry: entry[0])


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


@dataclass
class _Level:
    """A folder that a walk has entered."""

    prefix: str
    """Its path with a slash, relative to the folder where the walk began; empty for that folder."""
    identity: tuple[int, int]
    """Device and number of the folder."""
    folders: list[str] | None = None
    """The paths of its folders that are still to be entered; None: it was not listed yet."""


class _Position:
    """Where a walk is: the open folder, and the levels from the first folder to it."""

    def __init__(self, handle: int):
        self.handle = handle
        self.levels = [_Level("", _identity(handle))]

    def descend(self, handle: int, path: str) -> None:
        """Continue in a folder that was opened in the present folder."""
        os.close(self.handle)
        self.handle = handle
        self.levels.append(_Level(f"{path}/", _identity(handle)))

    def ascend(self) -> bool:
        """Return to the folder above; return False after the first folder, or if the folder was moved elsewhere."""
        self.levels.pop()
        if not self.levels:
            return False
        try:
            above = os.open("..", _ON_THE_WAY, dir_fd=self.handle)
        except OSError:
            return False
        os.close(self.handle)
        self.handle = above
        return _identity(above) == self.levels[-1].identity
