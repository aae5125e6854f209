"""Routes of uploaded code: upload, check and download by digest."""

import errno
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.responses import FileResponse

from service.api.dependencies import AppStateDep, code_role
from service.api.json_body import SlotRoute
from service.api.openapi import binary_body
from service.auth.principals import Principal
from service.code.store import Upload, find_archive
from service.core.errors import NotFoundError, UnavailableError
from service.core.thread_slots import run_in_thread_slot
from trainyard.contract.wire.files import CodeResource

router = APIRouter(prefix="/v1/code", tags=["code"], route_class=SlotRoute)

CoderDep = Annotated[Principal, Depends(code_role("uploaded code"))]

Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="`sha256:` and the SHA-256 of the archive.")]
_DUPLICATE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": CodeResource, "description": "The code was stored before."}
}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-tar": {}}, "description": "The archive."}}


@router.put(
    "/{digest}",
    status_code=201,
    operation_id="put_code",
    openapi_extra=binary_body("application/x-tar"),
    responses=_DUPLICATE_RESPONSES,
)
async def put(
    request: Request, response: Response, app_state: AppStateDep, _user: CoderDep, digest: Digest
) -> CodeResource:
    """Upload an uncompressed tar of code: 201, or 200 if it was stored before."""
    upload = Upload(app_state.settings.runs, digest)
    try:
        async for chunk in request.stream():
            if chunk:
                await run_in_thread_slot(upload.add, chunk)
        if not await run_in_thread_slot(upload.store):
            response.status_code = 200
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnavailableError("the disk of the service is full; try again later", code="disk_full") from error
    finally:
        upload.discard()
    return CodeResource(digest=digest)


@router.head("/{digest}", operation_id="has_code", response_class=FileResponse, responses=_ARCHIVE)
@router.get("/{digest}", operation_id="get_code", response_class=FileResponse, responses=_ARCHIVE)
def get(app_state: AppStateDep, _user: CoderDep, digest: Digest) -> FileResponse:
    """Download the archive; HEAD checks that it exists."""
    path = find_archive(app_state.settings.runs, digest)
    if path is None:
        raise NotFoundError("there is no code with that digest", code="code_not_found", param="digest")
    return FileResponse(path, media_type="application/x-tar", filename=f"{digest.removeprefix('sha256:')}.tar")
