"""Calls about plans, sweeps, templates and the service itself."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pydantic_core import to_jsonable_python

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.request import JSON, Request, force_param, model, no_result, paged, segment, unpaged, without_none
from trainyard.client.request import idempotency_key as new_key
from trainyard.client.spec_body import Spec, json_body, plain_spec, spec_body
from trainyard.client.waiting import PLAN_DATA_TIMEOUT_SECONDS
from trainyard.contract.spec.templates import Template
from trainyard.contract.wire.cluster import ClusterResource, MaintenanceRequest, MaintenanceResource
from trainyard.contract.wire.data_accounts import PLANNED_RECORDS, DataAccounts
from trainyard.contract.wire.diagnostics import DiagnosticsReport
from trainyard.contract.wire.files import UsageResource
from trainyard.contract.wire.orphans import OrphanResource
from trainyard.contract.wire.plans import PlanResource, StartEstimateResource
from trainyard.contract.wire.search import Search
from trainyard.contract.wire.sweeps import SweepDetail, SweepResource


class AsyncServiceCalls(AsyncTransport):
    """Calls about plans, sweeps, templates and the service itself."""

    async def plan(self, spec: Spec, *, estimate_start: bool = False) -> PlanResource:
        """Return the plan of a spec: memory by strategy, disk, the batch script. Nothing is submitted.

        Args:
            estimate_start: also request a start estimate; while it is waiting, `start_estimate` reads it later.
        """
        content, media_type = spec_body(spec)
        params = {"estimate_start": "true"} if estimate_start else {}
        headers = {"Content-Type": media_type}
        return await self._send(Request("POST", "/v1/plans", model(PlanResource), params, headers, content))

    async def plan_data(
        self, spec: Spec, *, records: int = PLANNED_RECORDS, seconds: float | None = None
    ) -> DataAccounts:
        """Let the service read the data of a spec, and return the account of each source. Nothing is submitted.

        Args:
            records: maximum number of records of each source.
            seconds: maximum time to read; default: as long as the service allows.
        """
        content, media_type = spec_body(spec)
        params = without_none(records=str(records), seconds=None if seconds is None else str(seconds))
        headers = {"Content-Type": media_type}
        request = Request("POST", "/v1/plans/data", model(DataAccounts), params, headers, content, repeatable=False)
        return await self._send(replace(request, timeout=PLAN_DATA_TIMEOUT_SECONDS))

    async def start_estimate(self, estimate_id: str) -> StartEstimateResource:
        """Return the start estimate of a plan."""
        path = f"/v1/start-estimates/{segment(estimate_id, 'start estimate')}"
        return await self._send(Request("GET", path, model(StartEstimateResource)))

    def sweep_url(self, sweep_id: str) -> str:
        """Return the address of the sweep's page on the dashboard."""
        return f"{self.address}/compare?sweep={quote(sweep_id)}"

    async def submit_sweep(
        self,
        spec: Spec,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        members: Sequence[Mapping[str, Any]] | None = None,
        search: Search | Mapping[str, Any] | None = None,
        max_parallel: int | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
        force: bool = False,
    ) -> SweepDetail:
        """Submit several variants of a spec: a list, of which all or none are accepted; or a search, which proposes
        them as it runs.

        Args:
            grid: fields and the values of each; every combination is a job.
            members: instead of a grid, the changed fields of each job.
            search: instead of a grid, such as `Search(algorithm="asha", space={"optimizer.lr": "log:1e-5:1e-1"})`.
            max_parallel: the number of members that may be in the scheduler at once; default: all, or 4 of a search.
            force: submit even if the plan exceeds the GPUs' memory.
        """
        document = plain_spec(spec)
        ranges = search if search is None else to_jsonable_python(search, exclude_none=True)
        body = without_none(
            spec=document, grid=grid, members=members, search=ranges, max_parallel=max_parallel, name=name
        )
        headers = {"Idempotency-Key": new_key(idempotency_key), **JSON}
        params = force_param(force)
        return await self._send(Request("POST", "/v1/sweeps", model(SweepDetail), params, headers, json_body(body)))

    async def sweep(self, sweep_id: str) -> SweepDetail:
        """Return a sweep with its members and their progress."""
        return await self._send(Request("GET", f"/v1/sweeps/{segment(sweep_id, 'sweep')}", model(SweepDetail)))

    def sweeps(self) -> AsyncIterator[SweepResource]:
        """Iterate over all sweeps, newest first."""
        return self._pages(paged("/v1/sweeps", SweepResource))

    async def cancel_sweep(self, sweep_id: str) -> SweepDetail:
        """Request cancellation of every member that has not ended."""
        path = f"/v1/sweeps/{segment(sweep_id, 'sweep')}/cancel"
        return await self._send(Request("POST", path, model(SweepDetail)))

    async def templates(self) -> list[Template]:
        """Return the presets."""
        return await self._list(unpaged("/v1/templates", Template))

    async def template(self, name: str) -> Template:
        """Return a preset."""
        return await self._send(Request("GET", f"/v1/templates/{segment(name, 'template')}", model(Template)))

    async def cluster(self) -> ClusterResource:
        """Return the service's newest snapshot of the cluster."""
        return await self._send(Request("GET", "/v1/cluster", model(ClusterResource)))

    async def include_node(self, node: str) -> None:
        """Let jobs use an excluded node of the cluster again. Administrators only."""
        path = f"/v1/cluster/excluded-nodes/{segment(node, 'node')}"
        await self._send(Request("DELETE", path, no_result))

    async def maintenance(self) -> MaintenanceResource:
        """Return whether the maintenance mode is active, since when and by whom."""
        return await self._send(Request("GET", "/v1/maintenance", model(MaintenanceResource)))

    async def set_maintenance(self, active: bool, message: str = "") -> MaintenanceResource:
        """Turn the maintenance mode on or off. Administrators only.

        Args:
            message: why, and for how long; shown to all users.
        """
        body = MaintenanceRequest(active=active, message=message).model_dump_json().encode()
        return await self._send(
            Request("PUT", "/v1/maintenance", model(MaintenanceResource), headers=JSON, content=body)
        )

    async def orphans(self) -> list[OrphanResource]:
        """Return the orphans: scheduler entries and run directories that no job names. Administrators only."""
        return await self._list(unpaged("/v1/orphans", OrphanResource))

    async def resolve_orphan(self, orphan_id: str, action: str, *, owner: str | None = None) -> OrphanResource:
        """Request that an orphan is cancelled or adopted. Administrators only.

        Args:
            action: `cancel` or `adopt`.
            owner: the user to whom the adopted job belongs; None: you.
        """
        path = f"/v1/orphans/{segment(orphan_id, 'orphan')}/resolve"
        body = json_body(without_none(action=action, owner=owner))
        return await self._send(Request("POST", path, model(OrphanResource), headers=JSON, content=body))

    async def usage(self) -> UsageResource:
        """Return the disk use by user and in total, as last measured."""
        return await self._send(Request("GET", "/v1/usage", model(UsageResource)))

    async def doctor(self) -> DiagnosticsReport:
        """Run the service's diagnostics and return their findings."""
        return await self._send(Request("GET", "/v1/doctor", model(DiagnosticsReport)))
