"""Responses with files below a run directory: a file, a range of it, or a folder as a tar.

Starlette's `FileResponse` is not used: it opens the path itself, following links that a job may have planted, answers
several ranges with a multipart body, and supports neither `If-None-Match` nor the API's error format.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from email.utils import format_datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi import Path as PathParam
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.openapi import CACHE_HEADERS, described_headers
from service.audit.log import add_audit_detail
from service.checkpoints.archive import archive_length, list_members, write_archive
from service.checkpoints.safe_files import CHUNK, is_plain_path, modified_time, open_below
from service.core.errors import InvalidRequestError, NotFoundError, RangeError
from service.core.thread_slots import iterate_in_thread_slot
from service.core.untrusted_files import IrregularFileError, UntrustedFiles
from trainyard.contract.wire.pages import ErrorEnvelope

_OCTETS = "application/octet-stream"
_TAR = "application/x-tar"
_MAX_LISTED = 20
"""Maximum number of left-out paths that the audit entry of an archive lists."""
_MAX_LISTED_PATH = 256
"""Characters of such a path."""

_HEADERS_ONLY = "Return the headers of a download only: its length, and of a file the `ETag` and `Last-Modified`."

FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {_OCTETS: {}}, "description": "The file.", "headers": described_headers(CACHE_HEADERS)},
    206: {"content": {_OCTETS: {}}, "description": "The requested range, given in `Content-Range`."},
    304: {"description": "The file is the one that `If-None-Match` names."},
    416: {"model": ErrorEnvelope, "description": "The range is outside the file, whose size is in `Content-Range`."},
}
"""OpenAPI responses of a route that returns `file_response`."""

TAR_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {_TAR: {}},
        "description": "An uncompressed tar of known length.",
        "headers": described_headers({"Content-Disposition": "Suggested file name."}),
    }
}
"""OpenAPI responses of a route that returns `archive_response`."""


class FilePathConvertor(Convertor[str]):
    """The path of a file in a route: `{path:file}`. Unlike `{path:path}`, it matches line breaks too."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("file", FilePathConvertor())

Endpoint = TypeVar("Endpoint", bound=Callable[..., Response])

FilePath = Annotated[str, PathParam(description="Path of the file in its folder, with slashes.")]
FileLimit = Annotated[int, Query(ge=1, le=200, description="Maximum number of results.")]
AfterFile = Annotated[str | None, Query(max_length=4096, description="The `last_id` of the previous page.")]
Range = Annotated[
    str | None, Header(description="One range of bytes. Several ranges are answered with the whole file.")
]
IfRange = Annotated[
    str | None,
    Header(description="The `ETag` of the partly downloaded file; if it changed, the whole file is sent. No dates."),
]
IfNoneMatch = Annotated[
    str | None, Header(description="One or more `ETag`s of files that the client has; a match is answered with 304.")
]


@dataclass(frozen=True)
class FileConditions:
    """The method and headers of a request that select the part of a file to be sent."""

    head: bool = False
    range: str | None = None
    if_range: str | None = None
    if_none_match: str | None = None

    def is_unchanged(self, etag: str) -> bool:
        """Whether `If-None-Match` names this file."""
        etags = [value.strip().removeprefix("W/") for value in (self.if_none_match or "").split(",")]
        return etag in etags or etags == ["*"]

    def select(self, etag: str, size: int) -> tuple[int, int] | None:
        """Return the start and end (exclusive) of the bytes to send; None if the range is outside the file."""
        whole = (0, size)
        if self.head or self.range is None or self.if_range not in (None, etag) or not size:
            return whole
        unit, _, text = self.range.partition("=")
        first, dash, last = text.strip().partition("-")
        if unit.strip().lower() != "bytes" or not dash or "," in text or not f"{first}{last}".isascii():
            return whole
        if not (first + last).isdigit() or len(first + last) > 40:
            return whole
        if not first:
            start, end = max(0, size - int(last)), size
        else:
            start, end = int(first), min(size, int(last) + 1) if last else size
        return (start, end) if start < end else None


def is_head(request: Request) -> bool:
    """Whether only the headers are requested."""
    return request.method == "HEAD"


HeadDep = Annotated[bool, Depends(is_head)]


def get_conditions(
    head: HeadDep, range: Range = None, if_range: IfRange = None, if_none_match: IfNoneMatch = None
) -> FileConditions:
    """The dependency of a route that returns `file_response`."""
    return FileConditions(head, range, if_range, if_none_match)


ConditionsDep = Annotated[FileConditions, Depends(get_conditions)]


def require_plain(path: str) -> str:
    """Return the path. Raises InvalidRequestError: no file of a checkpoint or an export has such a path."""
    if not is_plain_path(path):
        raise InvalidRequestError("is not the path of a file below this folder", param="path", code="invalid_path")
    return path


def download_route(
    router: APIRouter, path: str, name: str, responses: dict[int | str, dict[str, Any]] = FILE_RESPONSES
) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that routes GET and HEAD to an endpoint that returns a file or an archive."""

    def add(endpoint: Endpoint) -> Endpoint:
        for method, verb, description in (("GET", "download", None), ("HEAD", "check", _HEADERS_ONLY)):
            route = router.api_route(
                path,
                methods=[method],
                operation_id=f"{verb}_{name}",
                description=description,
                response_class=Response,
                responses=responses,
            )
            route(endpoint)
        return endpoint

    return add


def file_response(
    files: UntrustedFiles,
    root: Path,
    path: str,
    conditions: FileConditions,
    *,
    code: str = "file_not_found",
    name: str | None = None,
) -> Response:
    """Return the file, or the requested range of it, as an attachment: a browser stores it, and never shows it.

    Args:
        name: The file name for the browser; None: the last part of the path.

    Raises:
        NotFoundError: there is no regular file of the job at the path; links are not followed.
        RangeError: the range is outside the file.
    """
    file = _open(files, root, path)
    if file is None:
        raise NotFoundError(f"there is no file {path!r}", code=code, param="path")
    status = os.fstat(file.fileno())
    headers, size = _validators(status), status.st_size
    headers["Content-Disposition"] = _attachment(name or path)
    unchanged = conditions.is_unchanged(headers["ETag"])
    span = conditions.select(headers["ETag"], size)
    if unchanged or span is None or conditions.head:
        file.close()
    if unchanged:
        return Response(status_code=304, headers=headers)
    if span is None:
        raise RangeError(size)
    start, end = span
    headers["Content-Length"] = str(end - start)
    if conditions.head:
        return Response(headers=headers, media_type=_OCTETS)
    partial = span != (0, size)
    if partial:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    chunks = _read(file, start, end)
    return _ClosingResponse(file, chunks, status_code=206 if partial else 200, headers=headers, media_type=_OCTETS)


def content_response(content: bytes, name: str, media_type: str, conditions: FileConditions) -> Response:
    """Return content that is in memory, or the requested range of it, as an attachment.

    Raises:
        RangeError: the range is outside the content.
    """
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Disposition": _attachment(name)}
    if conditions.is_unchanged(etag):
        return Response(status_code=304, headers=headers)
    span = conditions.select(etag, len(content))
    if span is None:
        raise RangeError(len(content))
    start, end = span
    partial = span != (0, len(content))
    if partial:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
    return Response(content[start:end], 206 if partial else 200, headers, media_type)


def _open(files: UntrustedFiles, root: Path, path: str) -> BinaryIO | None:
    """Open a file, or return None; a link or a special file in its place is added to the audit entry."""
    try:
        return open_below(files, root, path)
    except IrregularFileError as error:
        if is_plain_path(path):
            add_audit_detail(kind=error.kind, path=path)
        return None


class _Closable(Protocol):
    def close(self) -> None: ...


class _ClosingResponse(StreamingResponse):
    """Sends chunks that are read in threads, and then closes a resource.

    The iterator of the chunks cannot close it: it never starts if the client disconnects first.
    """

    def __init__(self, resource: _Closable, chunks: Iterator[bytes], **options: Any):
        super().__init__(iterate_in_thread_slot(chunks), **options)
        self._resource = resource

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing(self._resource):
            await super().__call__(scope, receive, send)


def _validators(status: os.stat_result) -> dict[str, str]:
    """Return the headers that identify a file's content: replacing, changing or extending the file changes its ETag."""
    return {
        "ETag": f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"',
        "Last-Modified": format_datetime(modified_time(status), usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _attachment(path: str) -> str:
    """Return the header that names a download (RFC 6266). A name that is not plain ASCII is encoded."""
    name = path.rpartition("/")[2]
    if re.fullmatch(r"[A-Za-z0-9 ._+=@,~-]+", name):
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


def _read(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes in chunks."""
    file.seek(start)
    left = end - start
    while left > 0 and (data := file.read(min(CHUNK, left))):
        left -= len(data)
        yield data


def archive_response(files: UntrustedFiles, root: Path, name: str, *, head: bool = False) -> Response:
    """Return the files of a folder that are not hidden as an uncompressed tar, under `name`/.

    Raises:
        NotFoundError: the folder contains no such file.
    """
    left_out: list[str] = []
    members = list_members(files, root, name, left_out)
    if left_out:
        add_audit_detail(left_out=[path[:_MAX_LISTED_PATH] for path in left_out[:_MAX_LISTED]])
    if not members:
        raise NotFoundError("there are no files", code="file_not_found")
    headers = {
        "Content-Length": str(archive_length(members)),
        "Content-Disposition": f'attachment; filename="{name}.tar"',
    }
    if head:
        return Response(headers=headers, media_type=_TAR)
    chunks = write_archive(files, root, members)
    return _ClosingResponse(chunks, chunks, headers=headers, media_type=_TAR)
