"""The route of a job's lineage."""

from fastapi import APIRouter

from service.api.dependencies import AppStateDep, JobId, NowDep, UserDep
from service.api.json_body import SlotRoute
from service.registry.lineage import read_lineage
from trainyard.contract.wire.lineage import JobLineage

router = APIRouter(prefix="/v1/jobs/{job_id}/lineage", tags=["jobs"], route_class=SlotRoute)


@router.get("", operation_id="get_lineage")
def get(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> JobLineage:
    """Get the lineage of a job: origin, forks, data, base model and registered models."""
    return read_lineage(app_state.database, job_id, now)
