"""A folder as an uncompressed tar whose length is known before the first byte."""

import tarfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.checkpoints.safe_files import CHUNK, list_files, open_below
from service.core.errors import ConflictError
from service.core.untrusted_files import IrregularFileError, UntrustedFiles
from trainyard.contract.wire.files import FileResource, is_hidden

_END = 2 * tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Member:
    """One file of an archive, with its tar header."""

    path: str
    size: int
    header: bytes

    @property
    def padding(self) -> int:
        return -self.size % tarfile.BLOCKSIZE

    @property
    def length(self) -> int:
        """Bytes in the archive."""
        return len(self.header) + self.size + self.padding


def list_members(files: UntrustedFiles, root: Path, name: str, left_out: list[str]) -> list[Member]:
    """Return the regular files below a folder that are not hidden, to be archived under `name`/.

    Args:
        left_out: Receives the paths of hidden files, links, special files and files of other accounts.
    """
    listed = list_files(files, root, hidden=True, irregular=left_out)
    left_out += [file.path for file in listed if is_hidden(file.path)]
    return [_member(file, name) for file in listed if not is_hidden(file.path)]


def _member(file: FileResource, name: str) -> Member:
    info = tarfile.TarInfo(f"{name}/{file.path}")
    info.size, info.mtime, info.mode = file.size_bytes, int(file.modified_at.timestamp()), 0o644
    return Member(file.path, file.size_bytes, info.tobuf(tarfile.PAX_FORMAT))


def archive_length(members: Sequence[Member]) -> int:
    """Return the length of the archive in bytes."""
    return sum(member.length for member in members) + _END


def write_archive(files: UntrustedFiles, root: Path, members: Sequence[Member]) -> Generator[bytes]:
    """Yield the archive in chunks.

    Raises:
        ConflictError: a file was removed, replaced or became shorter since it was listed; the archive ends early.
    """
    for member in members:
        try:
            opened = open_below(files, root, member.path)
        except IrregularFileError:
            opened = None
        if opened is None:
            raise ConflictError(f"{member.path} was removed while it was being sent")
        left = member.size
        with opened as file:
            yield member.header
            while left > 0 and (data := file.read(min(CHUNK, left))):
                left -= len(data)
                yield data
        if left:
            raise ConflictError(f"{member.path} became shorter while it was being sent")
        yield bytes(member.padding)
    yield bytes(_END)
