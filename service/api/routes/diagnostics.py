"""The route behind `trainyard doctor`: what the service sees of its own installation."""

from fastapi import APIRouter

from service.api.dependencies import AdminDep, ServicesDep
from service.diagnostics.checks import examine
from trainyard.contract.wire.diagnostics import DiagnosticsReport

router = APIRouter(prefix="/v1/doctor", tags=["health"])


@router.get("", operation_id="get_doctor")
def get_doctor(services: ServicesDep, _admin: AdminDep) -> DiagnosticsReport:
    """What can be wrong with the installation, as the service itself sees it; may take seconds. The scheduler is not
    asked: what the reconciler heard of it is in `/v1/cluster`."""
    return DiagnosticsReport(findings=list(examine(services.settings, ask_scheduler=False)))
