"""Routes of OpenAI's API for files."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from service.api.dependencies import AppStateDep, LenientEditorDep, LenientUserDep, NowDep
from service.api.file_responses import ConditionsDep, content_response, file_response
from service.api.json_body import SlotRoute
from service.api.routes.files import receive_form
from service.core.errors import InvalidRequestError
from service.core.untrusted_files import UntrustedFiles
from service.db.paging import PageRequest
from service.plugins.openai.errors import PREFIX, check_after
from service.plugins.openai.routes import FineTunesDep
from service.plugins.openai.schemas import file_document, list_document
from trainyard.contract.data_files import MAX_OPENAI_FILE_BYTES

_MAX_LISTED = 10_000
_FILES = f"{PREFIX}files"

router = APIRouter(include_in_schema=False, route_class=SlotRoute)


@router.post(_FILES, operation_id="create_openai_file")
async def create(request: Request, app_state: AppStateDep, user: LenientEditorDep, now: NowDep) -> Response:
    """Upload a JSONL file for training or validation."""
    row = await receive_form(
        request, app_state, user, now, None, check_fields=_check_fields, limit=MAX_OPENAI_FILE_BYTES
    )
    return JSONResponse(file_document(row))


def _check_fields(fields: dict[str, str]) -> None:
    """Check the other fields of the form.

    Raises:
        InvalidRequestError: The purpose is not supported, or the file is to expire.
    """
    purpose = fields.get("purpose")
    if purpose != "fine-tune":
        message = "is missing; send `fine-tune`" if purpose is None else "must be `fine-tune`; others are not supported"
        raise InvalidRequestError(message, param="purpose")
    if any(name.startswith("expires_after") for name in fields):
        message = "is not supported: files stay until they are deleted"
        raise InvalidRequestError(message, param="expires_after", code="unsupported")


@router.get(_FILES, operation_id="list_openai_files")
def list_files(
    app_state: AppStateDep,
    _user: LenientUserDep,
    after: Annotated[str | None, Query(max_length=80)] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = _MAX_LISTED,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:
    """List uploaded files, newest first.

    Raises:
        InvalidRequestError: `after` is not the id of a file.
    """
    if purpose not in (None, "fine-tune"):
        return JSONResponse(list_document([], False))
    check_after(after, "file")
    rows, has_more = app_state.files.list_page(PageRequest(limit, after, order == "desc"), None)
    return JSONResponse(list_document([file_document(row) for row in rows], has_more))


@router.get(f"{_FILES}/{{file_id}}", operation_id="get_openai_file")
def get(app_state: AppStateDep, fine_tunes: FineTunesDep, _user: LenientUserDep, now: NowDep, file_id: str) -> Response:
    """Get a file: an uploaded file, or the results of a job."""
    results = fine_tunes.results(file_id, now)
    return JSONResponse(results[0] if results is not None else file_document(app_state.files.get(file_id)))


@router.get(f"{_FILES}/{{file_id}}/content", operation_id="download_openai_file")
def content(
    app_state: AppStateDep,
    fine_tunes: FineTunesDep,
    _user: LenientUserDep,
    now: NowDep,
    file_id: str,
    conditions: ConditionsDep,
) -> Response:
    """Download a file."""
    results = fine_tunes.results(file_id, now)
    if results is not None:
        document, text = results
        return content_response(text, document["filename"], "text/csv", conditions)
    path, name = app_state.files.content(file_id), app_state.files.get(file_id).name
    files = UntrustedFiles(app_state.settings.runs)
    return file_response(files, path.parent, path.name, conditions, code="file_content_not_found", name=name)


@router.delete(f"{_FILES}/{{file_id}}", operation_id="delete_openai_file")
def delete(app_state: AppStateDep, fine_tunes: FineTunesDep, user: LenientEditorDep, file_id: str) -> Response:
    """Delete an uploaded file; its content stays while unfinished jobs use it. Results of jobs are refused."""
    fine_tunes.refuse_to_delete_results(file_id)
    app_state.files.delete(user, file_id)
    app_state.notify_cleanup()
    return JSONResponse({"object": "file", "id": file_id, "deleted": True})
