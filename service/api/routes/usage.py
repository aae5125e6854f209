"""Route of disk use, as the maintenance task measured it."""

from fastapi import APIRouter

from service.api.dependencies import AppStateDep, UserDep
from service.api.json_body import SlotRoute
from service.maintenance.disk import free_bytes
from service.maintenance.repository import MaintenanceRepository
from trainyard.contract.wire.files import UsageResource, UserUsage

router = APIRouter(prefix="/v1/usage", tags=["usage"], route_class=SlotRoute)


@router.get("", operation_id="get_usage")
def get(app_state: AppStateDep, _user: UserDep) -> UsageResource:
    """Get the disk use of all jobs, per user and in total. It is measured about once a minute."""
    with app_state.database.read() as session:
        rows = MaintenanceRepository(session).usage()
    return UsageResource(
        users=[UserUsage(name=name, jobs=count, disk_bytes=size) for name, count, size in rows],
        disk_bytes=sum(size for _, _, size in rows),
        free_bytes=free_bytes(app_state.settings.runs),
        quota_bytes_per_user=app_state.settings.quota_bytes,
    )
