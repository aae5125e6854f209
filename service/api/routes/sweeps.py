"""Routes of sweeps."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from service.api.dependencies import AppState, AppStateDep, EditorDep, NowDep, SweepWindowDep, UserDep
from service.api.idempotency import REPLAYED, IdempotencyKey
from service.api.json_body import JsonRoute
from service.auth.principals import Principal
from service.code.service import check_code
from service.core.errors import InvalidSpecError
from service.core.settings import Settings
from service.core.thread_slots import change_thread_slots, run_in_thread_slot
from service.db.visibility import jobs_of
from service.jobs.quota import check_gpu_quota
from service.jobs.schemas import page_of
from service.jobs.submission import SubmissionResult
from service.specs.acceptance import AcceptedSpec, RejectedSpec
from service.specs.data_files import pin_or_reject
from service.sweeps import service as sweep_service
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


def accept_members(
    app_state: AppState, user: Principal, documents: list[dict[str, Any]], now: datetime
) -> Iterator[AcceptedSpec | RejectedSpec]:
    """Yield each document as an accepted spec with the digests of its files, or with its problems."""
    for accepted in app_state.batch_acceptance.accept_all(user.name, documents, now):
        yield accepted if isinstance(accepted, RejectedSpec) else pin_or_reject(app_state.files, accepted)


def check_member(app_state: AppState, user: Principal, accepted: AcceptedSpec) -> None:
    """Raises ServiceError: the user may not submit the spec."""
    app_state.secrets.require(user, accepted.spec)
    check_code(user, accepted.spec, app_state.settings)


def accept_trial(
    app_state: AppState, user: Principal, document: dict[str, Any], now: datetime
) -> AcceptedSpec | RejectedSpec:
    """Return the spec of a trial of a search, as if its user submitted it now.

    Raises:
        ServiceError: it cannot be checked now.
    """
    is_private = app_state.settings.run_as == "owner" and user.role != "admin"
    with jobs_of(user.name if is_private else None):
        accepted = next(iter(accept_members(app_state, user, [document], now)))
        if isinstance(accepted, RejectedSpec):
            return accepted
        try:
            check_member(app_state, user, accepted)
            check_gpu_quota(app_state.quotas, user.role, accepted.spec)
        except InvalidSpecError as error:
            return RejectedSpec(tuple(error.problems))
    return accepted


router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], route_class=_SweepRoute)

SweepId = Annotated[str, Path(pattern=r"^swp_[0-9a-z]{26}$", description="Id of the sweep: `swp_...`.")]


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
    settings = app_state.settings

    def check(accepted: AcceptedSpec) -> None:
        check_member(app_state, user, accepted)

    def accept_all(documents: list[dict[str, Any]]) -> Iterable[AcceptedSpec | RejectedSpec]:
        return accept_members(app_state, user, documents, now)

    options = sweep_service.SubmissionOptions(
        app_state.quotas, settings.max_sweep_members, idempotency_key, force, settings.run_as
    )

    def store() -> SubmissionResult:
        return sweep_service.submit(app_state.database, user, body, accept_all, check, options, now)

    # Sweeps of a user are checked in turn: several at once would leave little time to the event loop.
    change_thread_slots(app_state.sweep_slots)
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
