"""The whole service in one process, on a real database, with a fake clock, scheduler and workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
import sqlalchemy as sa
from fastapi.testclient import TestClient

from service.api.dependencies import AppState
from service.auth.principals import ensure_admin_token
from service.auth.tokens import Role, new_user_token, parse_token
from service.core.failpoints import no_failpoint
from service.db.leader_lease import LeaderLease
from service.db.models import Attempt, Job, Token
from service.maintenance.task import MaintenanceTask
from service.plugins.installed import PLUGINS, enabled_plugins
from service.plugins.sweeps.plugin import make_searcher
from service.plugins.sweeps.search.searcher import SweepSearcher
from service.plugins.webhooks.dispatcher import WebhookDispatcher
from service.plugins.webhooks.part import part_of
from service.plugins.webhooks.sender import Sender
from service.reconciler.reconciler import Reconciler
from service.reconciler.submission.pool import SubmitPool
from service.reconciler.submission.submitter import Submitter
from service.scheduler.base import (
    Accepted,
    Forecast,
    LaunchPlan,
    Observation,
    QueueEntry,
    SchedulerUnavailableError,
    SubmitOutcome,
    SubmittedJob,
)
from tests.support.shared_parts import (
    SettingsWithoutEnvironment,
    SharedLoopClient,
    WorldDatabase,
    app_with_shared_routes,
    ending_requests_only,
    trusted_authorities,
)
from trainyard.contract.layout import AttemptLayout, RunLayout, attempt_folder_name
from trainyard.contract.wire.cluster import ClusterSnapshot
from trainyard.contract.wire.launch import LaunchDocument


@dataclass
class FakeClock:
    """A clock that stands still until `advance`."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class FakeScheduler:
    """The scheduler port with the answers that the test has set, faults included."""

    name: Literal["local", "slurm"] = "local"
    outcome: SubmitOutcome | None = None
    """The answer to the next submissions; None accepts them."""
    unavailable: bool = False
    lose_answers: bool = False
    """Accept a submission, but end the caller before it has the answer."""
    submitted: list[LaunchPlan] = field(default_factory=list)
    states: dict[str, Observation] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    ends_cancelled: bool = False
    """Whether a job ends as soon as it is cancelled."""
    recorded: dict[str, SubmitOutcome] = field(default_factory=dict)
    """Answers that submitters left, by `LaunchPlan.submission`."""
    observe_calls: int = 0
    nodes: ClusterSnapshot = field(default_factory=ClusterSnapshot)
    """The cluster that it reports."""
    cluster_calls: int = 0
    forecast_result: Forecast = field(default_factory=lambda: Forecast(True, "Slurm would accept the job."))
    forecast_scripts: list[str] = field(default_factory=list)
    """The scripts of the forecasts that were requested."""

    def submit(self, plan: LaunchPlan) -> SubmitOutcome:
        if self.outcome is not None:
            return self.outcome
        self.submitted.append(plan)
        self.states[plan.tag] = Observation("pending", "waiting")
        if self.lose_answers:
            raise KeyboardInterrupt
        return Accepted(f"id-{plan.tag}")

    def observe(self, jobs: Sequence[SubmittedJob]) -> Mapping[str, Observation]:
        self.observe_calls += 1
        self._check()
        return {job.tag: self.states.get(job.tag, Observation("absent")) for job in jobs}

    def find(self, tag: str, folder: Path, unconfirmed_tags: Sequence[str] = (), uid: int | None = None) -> list[str]:
        self._check()
        return [f"id-{tag}"] if tag in self.states else []

    def recorded_answer(self, folder: Path, submission: str, uid: int | None = None) -> SubmitOutcome | None:
        return self.recorded.get(submission)

    def own_entries(self) -> list[QueueEntry]:
        self._check()
        listed = ((tag, observation.state) for tag, observation in self.states.items())
        return [QueueEntry(tag, f"id-{tag}", state) for tag, state in listed if state in ("pending", "running")]

    def cancel(self, job: SubmittedJob) -> None:
        self._check()
        self.cancelled.append(job.tag)
        if self.ends_cancelled:
            self.end(job.tag)

    def cluster(self) -> ClusterSnapshot:
        self.cluster_calls += 1
        self._check()
        return self.nodes

    def forecast(self, script: str) -> Forecast:
        self.forecast_scripts.append(script)
        self._check()
        return self.forecast_result

    def _check(self) -> None:
        if self.unavailable:
            raise SchedulerUnavailableError("it does not answer")

    def set_states(self, state: Literal["pending", "running", "ended", "absent"], message: str = "") -> None:
        """Set the state of all submitted jobs."""
        self.states = {tag: Observation(state, message) for tag in self.states}

    def end(self, tag: str) -> None:
        """End one submitted job."""
        self.states[tag] = Observation("ended")


class World:
    """One service with clients, the reconciler and workers, all driven by the test."""

    def __init__(self, url: str, folder: Path, clock: FakeClock | None = None, **settings: Any):
        made = {"accelerator": "cpu", "local_slots": 4, **settings}
        self.settings = SettingsWithoutEnvironment(state_dir=folder, database_url=url, **made)
        self.settings.runs.mkdir(parents=True, exist_ok=True)
        self.clock = clock or FakeClock()
        self.database = WorldDatabase(self.settings.url)
        self.scheduler = FakeScheduler()
        self.app_state = AppState(settings=self.settings, database=self.database, clock=self.clock)
        self.app = app_with_shared_routes(self.app_state)
        self.reconciler = self.new_reconciler("one")
        ensure_admin_token(self.database, self.settings.state / "admin_token", self.clock())
        self.token = (self.settings.state / "admin_token").read_text().strip()
        self.client = self.new_client(self.token)

    def new_client(self, token: str | None) -> TestClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        app = ending_requests_only(self.app)
        return SharedLoopClient(app, base_url="http://localhost", headers=headers, raise_server_exceptions=False)

    def new_reconciler(self, owner: str, pool: SubmitPool | None = None, disabled: Sequence[str] = ()) -> Reconciler:
        """The reconciler of a restarted or of a second service.

        Args:
            disabled: Plugins that are switched off.
        """
        lease = LeaderLease(self.database, owner)
        app_state = self.app_state
        submitter = Submitter(
            database=self.database,
            settings=self.settings,
            clock=self.clock,
            acceptance=app_state.acceptance,
            scheduler=self.scheduler,
            lease=lease,
            metrics=app_state.metrics,
            pool=pool or SubmitPool(),
            run_files=app_state.run_files,
            failpoint=lambda label: app_state.failpoint(label),
        )
        return Reconciler(
            database=self.database,
            clock=lambda: self.app_state.clock(),
            settings=self.app_state.settings,
            quotas=self.app_state.quotas,
            scheduler=self.scheduler,
            submitter=submitter,
            lease=lease,
            metrics=self.app_state.metrics,
            failpoint=lambda label: self.app_state.failpoint(label),
            scheduler_work=[
                work
                for plugin in enabled_plugins(disabled)
                for work in plugin.make_scheduler_work(app_state, self.scheduler, lease)
            ],
        )

    def fail_at(self, label: str) -> None:
        """Raise SystemExit, which nothing catches, when the service next passes this failpoint."""

        def crash(passed: str) -> None:
            if passed == label:
                self.app_state.failpoint = no_failpoint
                raise SystemExit(label)

        self.app_state.failpoint = crash

    def new_user(self, role: Role, name: str) -> TestClient:
        """A client with a new API token."""
        text = new_user_token()
        parsed = parse_token(text)
        assert parsed is not None
        with self.database.write() as session:
            session.add(Token(id=parsed.id, hash=parsed.hash, name=name, role=role, created_at=self.clock()))
        return self.new_client(text)

    def submit(self, **changes: Any) -> str:
        """Submit a job and return its id."""
        answer = self.client.post("/v1/jobs", json={**SPEC, **changes})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.client.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def run_maintenance(self) -> None:
        """Run the maintenance task once, as the service that holds the leader lease does."""
        self.reconciler.lease.acquire(self.clock())
        app_state = self.app_state
        lease = self.reconciler.lease
        files = app_state.run_files
        MaintenanceTask(
            self.database,
            lease,
            self.settings,
            self.clock,
            files,
            app_state.audit_log.flush,
            app_state.failpoint,
            [plugin.delete_old for plugin in PLUGINS],
        ).run_once()

    def search(self, times: int = 1) -> None:
        """Advance the searches of sweeps, as the service that holds the leader lease does; proposals are drawn here."""
        self.reconciler.lease.acquire(self.clock())
        for _ in range(times):
            self.new_searcher().run_once()

    def new_searcher(self) -> SweepSearcher:
        """The searches of a restarted service."""
        made = make_searcher(self.app_state, self.reconciler.lease, lambda: None)
        made.run_in_process = lambda _owner, function, *arguments: function(*arguments)
        return made

    def deliver_webhooks(self, sender: Sender | None = None) -> int:
        """Run the webhook dispatcher once and return the number of messages that it tried to send."""
        self.reconciler.lease.acquire(self.clock())
        settings = self.app_state.settings
        made = sender or Sender(
            settings.webhook_allowed_hosts, part_of(self.app_state).resolver, trusted_authorities(), seconds=1.0
        )
        lease = self.reconciler.lease
        url = "https://trainyard.example"
        return WebhookDispatcher(
            self.database, lease, self.clock, made, self.app_state.failpoint, service_url=url
        ).run_once()

    def status(self, job_id: str) -> str:
        """The job's status, read from the database in a tenth of the time of a request."""
        return str(self._read_row(sa.select(Job.status).where(Job.id == job_id))[0])

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconciler.run_once()
            self.clock.advance(1)

    def pass_time(self, seconds: float, ticks: int = 6) -> None:
        """Let time pass, with some ticks of the reconciler at equal distances."""
        for _ in range(ticks):
            self.clock.advance(seconds / ticks)
            self.reconciler.run_once()

    def folder(self, job_id: str, attempt: int = 1) -> AttemptLayout:
        """The folder of the attempt with this number."""
        query = sa.select(Attempt.id).join(Job, Job.pk == Attempt.job_pk)
        (attempt_id,) = self._read_row(query.where(Job.id == job_id, Attempt.number == attempt))
        return self._folder(job_id, attempt, attempt_id)

    def worker(self, job_id: str) -> "FakeWorker":
        """The worker of the job's current attempt, with the token in its folder."""
        number, attempt_id = self._current_attempt(job_id)
        token = self._folder(job_id, number, attempt_id).token.read_text().strip()
        return FakeWorker(self.new_client(token), attempt_id, self)

    def launch_document(self, job_id: str) -> LaunchDocument:
        """The launch document of the job's current attempt."""
        folder = self._folder(job_id, *self._current_attempt(job_id))
        return LaunchDocument.model_validate_json(folder.launch.read_bytes())

    def _current_attempt(self, job_id: str) -> tuple[int, str]:
        """The number and the id of the job's current attempt."""
        query = sa.select(Attempt.number, Attempt.id).join(Job, Job.attempt_id == Attempt.id).where(Job.id == job_id)
        number, attempt_id = self._read_row(query)
        return number, attempt_id

    def _folder(self, job_id: str, number: int, attempt_id: str) -> AttemptLayout:
        return RunLayout(self.settings.runs / job_id).attempt(attempt_folder_name(number, attempt_id))

    def _read_row(self, query: Any) -> Any:
        with self.database.read() as session:
            return session.execute(query).one()

    def start(self, job_id: str) -> "FakeWorker":
        """Submit a queued job to the scheduler and let its worker claim it."""
        self.tick()
        self.scheduler.set_states("running")
        worker = self.worker(job_id)
        worker.execution = worker.claim().json()["execution"]
        assert self.status(job_id) == "running"
        return worker


class FakeWorker:
    """The worker's side of the protocol."""

    def __init__(self, client: TestClient | httpx.Client, attempt_id: str, world: World):
        self.client = client
        self.attempt_id = attempt_id
        self.execution = 1
        self._world = world

    def post(self, route: str, body: Any) -> Any:
        return self.client.post(f"/v1/attempts/{self.attempt_id}/{route}", json=body)

    def claim(self, nonce: str = "nonce-0001", scheduler_id: str | None = None, nodes: str | None = None) -> Any:
        body = {"nonce": nonce, "host": "node1", "pid": 7, "scheduler_id": scheduler_id, "nodes": nodes}
        return self.post("claim", body)

    def metrics(self, points: Sequence[tuple[str, int, Any]], *, resumed: int = 0, **extra: Any) -> Any:
        sent = [{"key": k, "step": s, "value": v, "time": self._world.clock().isoformat()} for k, s, v in points]
        body = {"execution": self.execution, "resumed_from_step": resumed, "points": sent, **extra}
        return self.post("metrics", body)

    def log(self, rank: str, offset: int, data: bytes) -> Any:
        path = f"/v1/attempts/{self.attempt_id}/logs?rank={rank}&offset={offset}"
        return self.client.post(path, content=data)

    def checkpoint(self, step: int, **extra: Any) -> Any:
        body = {
            "execution": self.execution,
            "step": step,
            "size_bytes": 10,
            "digest": "sha256:" + "0" * 64,
            "world_size": 2,
            "time": self._world.clock().isoformat(),
            **extra,
        }
        return self.post("checkpoints", body)

    def finish(self, reason: str, **extra: Any) -> Any:
        body = {"execution": self.execution, "reason": reason, "time": self._world.clock().isoformat(), **extra}
        return self.post("finish", body)

    def end(self, reason: str, **extra: Any) -> None:
        """Report the exit, and let the scheduler's jobs end."""
        assert self.finish(reason, **extra).status_code == 200
        self._world.scheduler.set_states("ended")


SPEC: dict[str, Any] = {
    "name": "parity",
    "task": "regression",
    "gpus": 2,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 20,
    "batch": {"size": 10},
}
