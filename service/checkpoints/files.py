"""Handing out files below a run directory: one range of one file, or a folder as a tar whose length is known."""

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import structlog
from fastapi import Header
from starlette.responses import Response, StreamingResponse

from service.access.trail import notice
from service.artifacts.files import CHUNK, Span, list_files, oddity, open_below, read_span, span_of
from service.errors import ConflictError, InvalidRequestError, NotFoundError, RangeError
from trainyard.contract.resources import ErrorEnvelope, FileResource

log = structlog.get_logger("files")

_OCTETS = "application/octet-stream"
_MAX_PATH = 1024
_END = 2 * tarfile.BLOCKSIZE
_NAMED = 20
"""Of the files that an archive leaves out."""


Range = Annotated[str | None, Header(description="One range of bytes; several are answered by the whole file.")]

FILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {_OCTETS: {}}, "description": "The file."},
    206: {"content": {_OCTETS: {}}, "description": "The range asked for; `Content-Range` says which."},
    416: {"model": ErrorEnvelope, "description": "The range lies outside the file; `Content-Range` has its size."},
}
"""Of a route that answers with `file_response`."""


def require_plain(path: str) -> str:
    """Raises InvalidRequestError: no file of ours has such a name."""
    odd = any(part in ("", ".", "..") for part in path.split("/")) or any(c in path for c in "\\%\0")
    if odd or len(path) > _MAX_PATH:
        raise InvalidRequestError("is not the path of a file below this folder", param="path", code="invalid_path")
    return path


def file_response(root: Path, path: str, wanted: str | None, *, code: str = "file_not_found") -> Response:
    """The file, or the one range of it that the header asks for; several ranges are answered by the whole file.

    Raises:
        NotFoundError: there is no regular file of that name; links are not followed.
        RangeError: the range lies outside the file.
    """
    handle = open_below(root, path)
    if handle is None:
        if kind := oddity(root, path):
            log.warning("asked for what is not a regular file", folder=str(root), path=path, kind=kind)
            notice(kind=kind, path=path)
        raise NotFoundError(f"there is no file {path!r}", code=code, param="path")
    size = os.fstat(handle).st_size
    span = span_of(wanted, size) if size else Span(0, 0, 0)
    if span is None:
        os.close(handle)
        raise RangeError(size)
    headers = {"Content-Length": str(span.end - span.start), "Accept-Ranges": "bytes"}
    partial = (span.start, span.end) != (0, size)
    if partial:
        headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{size}"
    status = 206 if partial else 200
    return StreamingResponse(read_span(handle, span), status_code=status, headers=headers, media_type=_OCTETS)


@dataclass(frozen=True)
class Member:
    """One file of an archive, with the header that announces it."""

    path: str
    size: int
    header: bytes

    @property
    def length(self) -> int:
        return len(self.header) + self.size + self.padding

    @property
    def padding(self) -> int:
        return -self.size % tarfile.BLOCKSIZE


def archive_response(root: Path, name: str) -> Response:
    """The folder's files as an uncompressed tar, under `name`/.

    Raises:
        NotFoundError: there is nothing in it.
    """
    odd: list[str] = []
    members = [_member(file, name) for file in list_files(root, hidden=True, odd=odd)]
    if odd:
        log.warning("left out what is not a regular file", folder=str(root), paths=odd[:_NAMED])
        notice(left_out=odd[:_NAMED])
    if not members:
        raise NotFoundError("there are no files", code="file_not_found")
    headers = {
        "Content-Length": str(sum(member.length for member in members) + _END),
        "Content-Disposition": f'attachment; filename="{name}.tar"',
    }
    return StreamingResponse(_tar(root, members), headers=headers, media_type="application/x-tar")


def _member(file: FileResource, name: str) -> Member:
    info = tarfile.TarInfo(f"{name}/{file.path}")
    info.size, info.mtime, info.mode = file.size_bytes, int(file.modified_at.timestamp()), 0o644
    return Member(file.path, file.size_bytes, info.tobuf(tarfile.PAX_FORMAT))


def _tar(root: Path, members: Sequence[Member]) -> Iterator[bytes]:
    """Ends in an error, and so short of its length, where a file is no longer what was announced."""
    for member in members:
        handle = open_below(root, member.path)
        if handle is None:
            raise ConflictError(f"{member.path} went while it was being sent")
        yield member.header
        left = member.size
        with os.fdopen(handle, "rb") as file:
            while left > 0 and (data := file.read(min(CHUNK, left))):
                left -= len(data)
                yield data
        if left:
            raise ConflictError(f"{member.path} became shorter while it was being sent")
        yield bytes(member.padding)
    yield bytes(_END)
