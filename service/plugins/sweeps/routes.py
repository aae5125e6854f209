"""Routes of sweeps."""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.api.dependencies import AppStateDep, EditorDep, NowDep, UserDep, window_of
from service.api.idempotency import REPLAYED, IdempotencyKey
from service.api.json_body import JsonRoute
from service.core.settings import Settings
from service.core.thread_slots import change_thread_slots, run_in_thread_slot
from service.db.paging import PageRequest
from service.jobs.schemas import page_of
from service.jobs.submission import SubmissionResult
from service.plugins.sweeps import service as sweep_service
from service.plugins.sweeps.part import part_of
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.sweeps import SweepDetail, SweepRequest, SweepResource


class _SweepRoute(JsonRoute):
    """Refuses a list of too many members before any is validated."""

    def parse(self, request: Request, body: bytes) -> Any:
        document = super().parse(request, body)
        members = document.get("members") if isinstance(document, dict) else None
        if isinstance(members, list):
            settings: Settings = request.app.state.app_state.settings
            sweep_service.check_listed(len(members), settings.max_sweep_members)
        return document


PREFIX = "/v1/sweeps"

router = APIRouter(prefix=PREFIX, tags=["sweeps"], route_class=_SweepRoute)

SweepId = Annotated[str, Path(pattern=r"^swp_[0-9a-z]{26}$", description="Id of the sweep: `swp_...`.")]
SweepWindowDep = Annotated[PageRequest, Depends(window_of(r"^swp_[0-9a-z]{26}$"))]


@router.post("", status_code=201, operation_id="submit_sweep", response_model=SweepDetail, responses=REPLAYED)
async def submit(
    response: Response,
    app_state: AppStateDep,
    user: EditorDep,
    now: NowDep,
    body: SweepRequest,
    idempotency_key: IdempotencyKey = None,
    force: Annotated[bool, Query(description="Submit the jobs even if they cannot fit the GPUs' memory.")] = False,
) -> Any:
    """Submit several variants of a spec, or a search. At most `max_parallel` run at once; all are accepted, or none."""
    settings, part = app_state.settings, part_of(app_state)

    def check(accepted: AcceptedSpec) -> None:
        part.check_member(user, accepted)

    def accept_all(documents: list[dict[str, Any]]) -> Iterable[AcceptedSpec | RejectedSpec]:
        return part.accept_members(user, documents, now)

    options = sweep_service.SubmissionOptions(
        app_state.quotas, settings.max_sweep_members, idempotency_key, force, settings.run_as
    )

    def store() -> SubmissionResult:
        return sweep_service.submit(app_state.database, user, body, accept_all, check, options, now)

    change_thread_slots(part.slots)
    result = await run_in_thread_slot(store)
    if result.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        app_state.notify_reconciler()
    return result.response


@router.get("", operation_id="list_sweeps")
def list_all(app_state: AppStateDep, _user: UserDep, window: SweepWindowDep) -> Page[SweepResource]:
    """List sweeps, newest first, with the number of members per status."""
    rows, has_more = sweep_service.list_page(app_state.database, window)
    return page_of(rows, has_more, lambda row: row, lambda sweep: sweep.id)


@router.get("/{sweep_id}", operation_id="get_sweep")
def get(app_state: AppStateDep, _user: UserDep, now: NowDep, sweep_id: SweepId) -> SweepDetail:
    """Get a sweep with its members: their values, status and metrics. `GET /v1/jobs?sweep=` lists the full jobs."""
    return sweep_service.read(app_state.database, sweep_id, now)


@router.post("/{sweep_id}/cancel", status_code=202, operation_id="cancel_sweep")
def cancel(app_state: AppStateDep, user: EditorDep, now: NowDep, sweep_id: SweepId) -> SweepDetail:
    """Cancel every member that has not ended."""
    sweep = sweep_service.cancel(app_state.database, user, sweep_id, now)
    app_state.notify_reconciler()
    return sweep
