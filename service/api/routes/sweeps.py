"""The routes of sweeps."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response

from service.api.dependencies import NowDep, ServicesDep, SweepWindowDep, UserDep
from service.jobs.schemas import page_of
from service.sweeps import service as actions
from trainyard.contract.wire.pages import Page
from trainyard.contract.wire.sweeps import SweepDetail, SweepRequest, SweepResource

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

SweepId = Annotated[str, Path(pattern=r"^swp_[0-9a-z]{26}$")]


@router.post("", status_code=201, operation_id="submit_sweep", response_model=SweepDetail)
def submit(
    response: Response,
    services: ServicesDep,
    user: UserDep,
    now: NowDep,
    body: SweepRequest,
    idempotency_key: Annotated[str | None, Header()] = None,
    force: Annotated[bool, Query(description="Submit them even where they cannot fit the GPUs' memory.")] = False,
) -> Any:
    """Submit a spec in several variants, of which at most `max_parallel` run at once. All are accepted, or none."""
    accepted = actions.submit(services, user, body, idempotency_key, now, force=force)
    if accepted.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        services.notify_reconciler()
    return accepted.job


@router.get("", operation_id="list_sweeps")
def list_all(services: ServicesDep, _user: UserDep, window: SweepWindowDep) -> Page[SweepResource]:
    """Sweeps, newest first, with how many of their members are in which status."""
    rows, more = actions.page(services, window)
    return page_of(rows, more, lambda row: row, lambda sweep: sweep.id)


@router.get("/{sweep_id}", operation_id="get_sweep")
def get(services: ServicesDep, _user: UserDep, now: NowDep, sweep_id: SweepId) -> SweepDetail:
    """One sweep with its members: what each changes, and how it does. `GET /v1/jobs?sweep=` has the jobs themselves."""
    return actions.read(services, sweep_id, now)


@router.post("/{sweep_id}/cancel", status_code=202, operation_id="cancel_sweep")
def cancel(services: ServicesDep, user: UserDep, now: NowDep, sweep_id: SweepId) -> SweepDetail:
    """Ask for the end of every member that is not over."""
    found = actions.cancel(services, user, sweep_id, now)
    services.notify_reconciler()
    return found
