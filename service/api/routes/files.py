"""Routes of data files, and of uploads in parts."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from service.api.dependencies import (
    AppState,
    AppStateDep,
    CreatedByQuery,
    EditorDep,
    FileWindowDep,
    NowDep,
    UploadWindowDep,
    UserDep,
)
from service.api.file_responses import ConditionsDep, download_route, file_response
from service.api.json_body import JsonRoute
from service.api.multipart import FormReader
from service.api.openapi import binary_body
from service.auth.principals import Principal
from service.core.errors import InvalidRequestError, UnavailableError
from service.core.thread_slots import SlotsTakenError, change_thread_slots, run_in_thread_slot
from service.core.untrusted_files import UntrustedFiles
from service.db.models import DataFile
from service.files.service import file_resource
from service.files.store import Incoming
from service.jobs.schemas import page_of
from trainyard.contract.data_files import MAX_SINGLE_UPLOAD_BYTES
from trainyard.contract.wire.data_files import DataFileResource, FileFormat, UploadRequest, UploadResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=JsonRoute)
uploads_router = APIRouter(prefix="/v1/uploads", tags=["files"], route_class=JsonRoute)

FileId = Annotated[str, Path(pattern=r"^file_[0-9a-z]{26}$", description="Id of the data file: `file_...`.")]
UploadId = Annotated[str, Path(pattern=r"^upl_[0-9a-z]{26}$", description="Id of the upload: `upl_...`.")]
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
_MAX_NAME = 120
_FIRST_SECONDS = 2.0
_SECONDS_PER_BYTE = 3.0 / MAX_SINGLE_UPLOAD_BYTES
"""A file of the maximum size per request may take 5 s."""
_FED_BYTES = 256 * 1024
_TOO_EXPENSIVE = (
    "has lines that take longer to check than one request may; upload it in parts (`trainyard files upload` and "
    "`POST /v1/uploads` do)"
)


@router.post("", status_code=201, response_model=DataFileResource, operation_id="upload_file", openapi_extra=_FORM)
async def upload(
    request: Request,
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    format: Annotated[FileFormat | None, Query(description="Default: the format of the first line.")] = None,
) -> DataFileResource:
    """Upload a JSONL file, or a JSON array, of at most 64 MiB in one request. The error of bad lines counts them, and
    has the numbers of the first ten and the reasons."""
    return file_resource(await receive_form(request, app_state, user, now, format))


async def receive_form(
    request: Request,
    app_state: AppState,
    user: Principal,
    now: datetime,
    format: FileFormat | None,
    *,
    limit: int = MAX_SINGLE_UPLOAD_BYTES,
    check_fields: Callable[[dict[str, str]], None] = lambda fields: None,
) -> DataFile:
    """Store the file of a form.

    Args:
        check_fields: Raises InvalidRequestError for the other fields of the form.

    Raises:
        InvalidRequestError: A line cannot be used.
        MalformedRequestError: The body is not a form.
        UnavailableError: The disk is full.
    """
    opened: list[Incoming] = []

    def open_sink() -> Incoming:
        opened.append(app_state.files.receive(user, now, format, limit=limit))
        return opened[0]

    def store() -> DataFile:
        name = reader.finish()
        check_fields(reader.fields)
        return app_state.files.add(user, opened[0], plain_name(name), now)

    reader, budget = FormReader(request.headers.get("content-type"), open_sink), ProcessorBudget()
    change_thread_slots(app_state.files.check_slots)
    try:
        with full_disk_reported():
            async for chunk in request.stream():
                if chunk:
                    await run_in_thread_slot(budget.feed, reader, chunk)
            return await run_in_thread_slot(store)
    finally:
        for incoming in opened:
            incoming.discard()


class ProcessorBudget:
    """The processor time that a request may use for its file: some at once, and some for each byte."""

    def __init__(self) -> None:
        self._remaining = _FIRST_SECONDS

    def feed(self, reader: FormReader, chunk: bytes) -> None:
        """Parse received bytes. Raises InvalidRequestError: the form has taken too much time."""
        for start in range(0, len(chunk), _FED_BYTES):
            part = chunk[start : start + _FED_BYTES]
            started = time.thread_time()
            reader.feed(part)
            self._remaining += len(part) * _SECONDS_PER_BYTE - (time.thread_time() - started)
            if self._remaining < 0:
                raise InvalidRequestError(_TOO_EXPENSIVE, param="file", code="too_expensive")


@contextmanager
def full_disk_reported() -> Iterator[None]:
    """Raises UnavailableError instead of the OSError of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnavailableError("the disk of the service is full; try again later", code="disk_full") from error


def plain_name(name: str) -> str:
    """Return the last part of a file's name, without characters that could make it look like another name."""
    last = "".join(c for c in name.replace("\\", "/").rpartition("/")[2] if c.isprintable())
    return last.strip()[-_MAX_NAME:] or "file.jsonl"


@router.get("", operation_id="list_files")
def list_all(
    app_state: AppStateDep, _user: UserDep, window: FileWindowDep, created_by: CreatedByQuery = None
) -> Page[DataFileResource]:
    """List data files, newest first."""
    rows, has_more = app_state.files.list_page(window, created_by)
    return page_of(rows, has_more, file_resource, lambda row: row.id)


@router.get("/{file_id}", operation_id="get_file")
def get(app_state: AppStateDep, _user: UserDep, file_id: FileId) -> DataFileResource:
    """Get a data file: its size, format, number of examples and digest."""
    return file_resource(app_state.files.get(file_id))


@download_route(router, "/{file_id}/content", "file")
def content(app_state: AppStateDep, _user: UserDep, file_id: FileId, conditions: ConditionsDep) -> Response:
    """Download the content of a data file, or a range of it."""
    path, name = app_state.files.content(file_id), app_state.files.get(file_id).name
    files = UntrustedFiles(app_state.settings.runs)
    return file_response(files, path.parent, path.name, conditions, code="file_content_not_found", name=name)


@router.delete("/{file_id}", status_code=204, operation_id="delete_file")
def delete(app_state: AppStateDep, user: EditorDep, file_id: FileId) -> None:
    """Delete a data file. Its content stays while other files, or jobs that have not ended, use it."""
    app_state.files.delete(user, file_id)
    app_state.notify_cleanup()


@uploads_router.post("", status_code=201, operation_id="start_upload")
def start(app_state: AppStateDep, user: EditorDep, now: NowDep, body: UploadRequest) -> UploadResource:
    """Start an upload in parts, which an interruption does not lose."""
    return app_state.files.upload_resource(app_state.files.start(user, body, now))


@uploads_router.get("", operation_id="list_uploads")
def list_uploads(app_state: AppStateDep, user: UserDep, window: UploadWindowDep) -> Page[UploadResource]:
    """List your unfinished uploads, newest first; for administrators, the uploads of all users."""
    rows, has_more = app_state.files.uploads_page(user, window)
    return page_of(rows, has_more, app_state.files.upload_resource, lambda row: row.id)


@uploads_router.get("/{upload_id}", operation_id="get_upload")
def get_upload(app_state: AppStateDep, user: UserDep, upload_id: UploadId) -> UploadResource:
    """Get an upload: `received_bytes` is the offset at which to continue."""
    return app_state.files.upload_resource(app_state.files.upload(user, upload_id))


@uploads_router.put(
    "/{upload_id}",
    operation_id="send_part",
    openapi_extra=binary_body("application/octet-stream"),
    response_model=UploadResource,
)
async def send_part(
    request: Request,
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    upload_id: UploadId,
    offset: Annotated[
        int, Query(ge=0, le=2**53, description="Offset of the part's first byte in the file.", examples=[0])
    ],
) -> Any:
    """Send a part of at most 64 MiB. The received bytes are kept, even if the connection is lost, and then checked."""
    files, received = app_state.files, 0
    with (
        full_disk_reported(),
        # Closed even if no slot is free for the rest.
        closing(await run_in_thread_slot(files.open_part, user, upload_id, offset, now)) as writer,
    ):
        try:
            async for chunk in request.stream():
                received += len(chunk)
                if chunk:
                    await run_in_thread_slot(writer.add, chunk)
        finally:
            await run_in_thread_slot(writer.sync)
    if not received:
        raise InvalidRequestError("the part is empty", code="empty_part")
    resource = await run_in_thread_slot(lambda: files.upload_resource(files.upload(user, upload_id)))
    change_thread_slots(app_state.files.check_slots)
    with suppress(SlotsTakenError):  # a later request checks these lines
        await run_in_thread_slot(files.check_received, user, upload_id)
    return resource


@uploads_router.post("/{upload_id}/complete", status_code=201, operation_id="complete_upload")
async def complete(app_state: AppStateDep, user: EditorDep, now: NowDep, upload_id: UploadId) -> DataFileResource:
    """Check the rest of the lines and the digest, and make the upload a data file. Repeated, it returns the same."""
    change_thread_slots(app_state.files.check_slots)
    with full_disk_reported():
        return file_resource(await run_in_thread_slot(app_state.files.complete, user, upload_id, now))


@uploads_router.delete("/{upload_id}", status_code=204, operation_id="abandon_upload")
def abandon(app_state: AppStateDep, user: EditorDep, upload_id: UploadId) -> None:
    """Remove an upload and its received parts."""
    app_state.files.abandon(user, upload_id)
