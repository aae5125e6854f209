"""The routes of the account of a job's data, and of its lineage."""

from fastapi import APIRouter

from service.api.dependencies import AppStateDep, JobId, NowDep, UserDep
from service.api.json_body import SlotRoute
from service.db.paging import PageRequest
from service.jobs.lineage import read_lineage
from service.jobs.repository import JobRepository
from service.jobs.schemas import data_accounts
from trainyard.contract.wire.data_accounts import DATA_ACCOUNT, MAX_SOURCES_OF_JOB, DataAccounts
from trainyard.contract.wire.lineage import JobLineage
from trainyard.contract.wire.worker_events import WORKER_PREFIX

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], route_class=SlotRoute)


@router.get("/data", operation_id="get_data_accounts")
def get_data(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> DataAccounts:
    """Get the account of each source of a job's data: records, examples, and which tokens are learned. It is empty
    until the data was read, and for data without accounts, such as images."""
    newest = PageRequest(limit=MAX_SOURCES_OF_JOB)
    with app_state.database.read() as session:
        repository = JobRepository(session, now)
        rows, _ = repository.list_events(repository.get(job_id), newest, WORKER_PREFIX + DATA_ACCOUNT)
    return data_accounts(rows[::-1])


@router.get("/lineage", operation_id="get_lineage")
def get_lineage(app_state: AppStateDep, _user: UserDep, now: NowDep, job_id: JobId) -> JobLineage:
    """Get the lineage of a job: origin, forks, data, base model and registered models."""
    return read_lineage(app_state.database, job_id, now)
