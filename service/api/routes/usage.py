"""The route of disk use: what the housekeeper has measured."""

from fastapi import APIRouter

from service.api.dependencies import ServicesDep, UserDep
from service.maintenance.disk import free_bytes
from service.maintenance.repository import MaintenanceRepository
from trainyard.contract.wire.files import UsageResource, UserUsage

router = APIRouter(prefix="/v1/usage", tags=["usage"])


@router.get("", operation_id="get_usage")
def get(services: ServicesDep, _user: UserDep) -> UsageResource:
    """Disk use of all jobs, by person and in all. Measured about once a minute, never while you wait."""
    with services.database.read() as session:
        rows = MaintenanceRepository(session).usage()
    return UsageResource(
        users=[UserUsage(name=name, jobs=count, disk_bytes=size) for name, count, size in rows],
        disk_bytes=sum(size for _, _, size in rows),
        free_bytes=free_bytes(services.settings.runs),
        quota_bytes_per_user=services.settings.quota_bytes,
    )
