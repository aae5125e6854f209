"""Handing out files below a run directory: one range of one file, or a folder as a tar whose length is known."""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from service.audit.log import notice
from service.checkpoints.conditions import Wanted, freshness
from service.checkpoints.safe_files import CHUNK, Span, list_files, oddity, open_below, read_span, span_of
from service.core.errors import ConflictError, InvalidRequestError, NotFoundError, RangeError
from trainyard.contract.wire.files import FileResource
from trainyard.contract.wire.pages import ErrorEnvelope

log = structlog.get_logger("files")

_OCTETS = "application/octet-stream"
_TAR = "application/x-tar"
_MAX_PATH = 1024
_END = 2 * tarfile.BLOCKSIZE
_NAMED = 20
"""Of the files that an archive leaves out."""


FILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {_OCTETS: {}}, "description": "The file."},
    206: {"content": {_OCTETS: {}}, "description": "The range asked for; `Content-Range` says which."},
    304: {"description": "It is the one that `If-None-Match` names."},
    416: {"model": ErrorEnvelope, "description": "The range lies outside the file; `Content-Range` has its size."},
}
"""Of a route that answers with `file_response`."""

TAR_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {_TAR: {}}, "description": "An uncompressed tar of known length."}
}
"""Of one that answers with `archive_response`."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Response])


def require_plain(path: str) -> str:
    """Raises InvalidRequestError: no file of ours has such a name."""
    odd = any(part in ("", ".", "..") for part in path.split("/")) or any(c in path for c in "\\%\0")
    if odd or len(path) > _MAX_PATH:
        raise InvalidRequestError("is not the path of a file below this folder", param="path", code="invalid_path")
    return path


def downloads(
    router: APIRouter, path: str, name: str, answers: dict[int | str, dict[str, Any]] = FILE_ANSWERS
) -> Callable[[Endpoint], Endpoint]:
    """Route GET and HEAD to an endpoint that answers with a file or an archive."""

    def add(endpoint: Endpoint) -> Endpoint:
        for method, verb in (("GET", "download"), ("HEAD", "check")):
            route = router.api_route(
                path, methods=[method], operation_id=f"{verb}_{name}", response_class=Response, responses=answers
            )
            route(endpoint)
        return endpoint

    return add


def file_response(root: Path, path: str, wanted: Wanted, *, code: str = "file_not_found") -> Response:
    """The file, or the one range of it that is asked for; several ranges are answered by the whole file.

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
    seen = os.fstat(handle)
    headers, size = freshness(seen), seen.st_size
    known = wanted.is_known(headers["ETag"])
    span = span_of(wanted.range_of(headers["ETag"]), size) if size else Span(0, 0, 0)
    if known or span is None or wanted.head:
        os.close(handle)
    if known:
        return Response(status_code=304, headers=headers)
    if span is None:
        raise RangeError(size)
    headers["Content-Length"] = str(span.end - span.start)
    if wanted.head:
        return Response(headers=headers, media_type=_OCTETS)
    if partial := (span.start, span.end) != (0, size):
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


def archive_response(root: Path, name: str, *, head: bool = False) -> Response:
    """The folder's files as an uncompressed tar, under `name`/; `head`: only how long it is.

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
    if head:
        return Response(headers=headers, media_type=_TAR)
    return StreamingResponse(_tar(root, members), headers=headers, media_type=_TAR)


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
