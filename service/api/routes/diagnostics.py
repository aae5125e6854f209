"""The route behind `trainyard doctor`."""

from fastapi import APIRouter, Request

from service.api.dependencies import AdminDep, AppStateDep
from service.api.json_body import SlotRoute
from service.api.plugin import installed
from service.diagnostics.checks import run_checks
from trainyard.contract.wire.diagnostics import DiagnosticsReport

router = APIRouter(prefix="/v1/doctor", tags=["health"], route_class=SlotRoute)


@router.get("", operation_id="get_doctor")
def get_doctor(request: Request, app_state: AppStateDep, _admin: AdminDep) -> DiagnosticsReport:
    """Check the installation from the machine of the service; may take seconds. Does not call the scheduler, whose
    state is in `/v1/cluster`."""
    more = [check for plugin in installed(request.scope) for check in plugin.checks]
    return DiagnosticsReport(findings=list(run_checks(app_state.settings, more, query_scheduler=False)))
