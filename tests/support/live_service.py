"""A service in this process that runs by itself in real time. Its jobs wait until a test acts as their workers."""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from service.core.clock import utc_now
from service.main import background_services
from service.metrics.summaries import Summarizer
from service.plugins.installed import select_plugins
from service.scheduler.base import Observation
from service.web.app import create_app
from tests.support.live_world import served
from tests.support.wait import wait_until
from tests.support.world import FakeClock, FakeWorker, World
from trainyard.client import Client
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.cluster import ClusterSnapshot, SlotCount
from trainyard.contract.wire.exported import EXPORT_NOTE

SLOTS = 4
EVERY = 5
"""Steps between two reports."""
SECONDS = 30
IDLE_SECONDS = 5.0
"""Time between two heartbeats of a job that no test needs, so that its next test does not meet it as silent."""


class RealTime(FakeClock):
    """The time of the machine."""

    def __call__(self) -> datetime:
        return utc_now()


@dataclass(frozen=True)
class LiveService:
    """The service, and what a test needs to act as its workers."""

    world: World
    url: str

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)

    @property
    def runs_dir(self) -> Path:
        return self.world.settings.runs

    def client(self) -> Client:
        return Client(self.url, self.world.token)

    def start(self, job_id: str) -> "LiveWorker":
        """Wait until the scheduler has a job, start it there, and let its worker claim it."""

        def pending() -> dict[str, Any] | None:
            job = self.world.job(job_id)
            return job if job["status"] == "pending" else None

        return LiveWorker(self, wait_until(pending, SECONDS, f"{job_id} to be in the queue of the scheduler"))

    def train(self, job_id: str, checkpoints: Sequence[int] = ()) -> None:
        """Let a job train to its end, with checkpoints of some steps."""
        worker = self.start(job_id)
        worker.report(0, worker.total_steps)
        for step in checkpoints:
            worker.save(step)
        worker.succeed()


class LiveWorker(FakeWorker):
    """The worker of one attempt, which reports as one that trains a model."""

    def __init__(self, service: LiveService, job: dict[str, Any]):
        attempt, world = job["attempt"], service.world
        token = world.folder(job["id"], attempt["number"]).token.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        super().__init__(httpx.Client(base_url=service.url, headers=headers, timeout=SECONDS), attempt["id"], world)
        self.job_id = str(job["id"])
        self.total_steps = int(job["spec"]["steps"])
        self.resumed_from = 0
        self._service = service
        self._ranks = int(job["spec"]["gpus"])
        self._log_offset = 0
        (self._tag,) = [plan.tag for plan in world.scheduler.submitted if attempt["id"] in plan.tag]
        self._observe("running")
        self.execution = self.claim().json()["execution"]

    def stop_request(self) -> str | None:
        """Send a heartbeat, and return how the service asks the worker to stop."""
        stop: str | None = self.post("heartbeat", {"execution": self.execution}).json()["stop"]
        return stop

    def report(self, after: int, to: int) -> None:
        """Report every fifth step of a training whose loss decreases, and the evaluation at its end."""
        points: list[tuple[str, int, Any]] = []
        for step in range(after + EVERY, to + 1, EVERY):
            values = {
                "train/loss": 0.1 + math.exp(-step / 200) + 0.01 * math.sin(step),
                "train/lr": 0.001,
                "train/grad_norm": 1 + math.cos(step) / 2,
                "perf/examples_per_second": 200 + step % 7,
                "perf/step_seconds": 0.05,
                "memory/peak_bytes": 3e8,
            }
            if self._ranks > 1:
                values |= {f"perf/rank_seconds/{rank}": 0.04 + 0.01 * rank for rank in range(self._ranks)}
                values["perf/rank_spread_seconds"] = 0.01
            points += [(key, step, value) for key, value in values.items()]
        if to == self.total_steps:
            points.append(("eval/loss", to, 0.25))
        progress = {"step": to, "total_steps": self.total_steps, "seconds_per_step": 0.05, "phase": "training"}
        for begin in range(0, len(points), 1000):
            answer = self.metrics(points[begin : begin + 1000], resumed=self.resumed_from, progress=progress)
            assert answer.status_code == 200, answer.text

    def write_log(self, text: str) -> None:
        """Append to the log of rank 0."""
        self._log_offset = self.log("0", self._log_offset, text.encode()).json()["next_offset"]

    def event(self, type_: str, sequence: int, **data: Any) -> None:
        event = {"sequence": sequence, "type": type_, "message": type_, "data": data, "time": utc_now().isoformat()}
        answer = self.post("events", {"execution": self.execution, "events": [event]})
        assert answer.status_code == 200, answer.text

    def save(self, step: int) -> None:
        """Write a small checkpoint, and report it."""
        folder = self.run.checkpoint(step)
        folder.root.mkdir(parents=True)
        (folder.root / "__0_0.distcp").write_bytes(b"parameters")
        folder.manifest.write_text("{}")
        assert self.checkpoint(step).status_code == 200

    def succeed(self) -> None:
        """Export a small model, and end."""
        self.run.export.mkdir(parents=True, exist_ok=True)
        (self.run.export / "model.safetensors").write_bytes(b"parameters")
        (self.run.export / EXPORT_NOTE).write_text("{}")
        self.end("completed", step=self.total_steps)

    def end(self, reason: str, **extra: Any) -> None:
        """Report the exit, and let the scheduler's job end."""
        answer = self.finish(reason, **extra)
        assert answer.status_code == 200, answer.text
        self._observe("ended")

    @property
    def run(self) -> RunLayout:
        return RunLayout(self._service.runs_dir / self.job_id)

    def _observe(self, state: Any) -> None:
        self._service.world.scheduler.states[self._tag] = Observation(state)
        self._service.world.app_state.notify_reconciler()


class Endless:
    """A job whose worker reports four times a second while a test needs it, and is paused and resumed; in between it
    only sends heartbeats."""

    def __init__(self, service: LiveService, job_id: str, line: str):
        """Start the job. `line`: what it appends to its log with every second report."""
        self._service = service
        self._line = line
        self._worker: LiveWorker | None = service.start(job_id)
        self._job_id = job_id
        self._step = 300
        self._needed = threading.Event()
        self._closing = threading.Event()
        self._worker.report(0, self._step)
        self._worker.write_log(line * 3)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._needed.set()
        yield
        self._needed.clear()

    @contextmanager
    def open(self) -> Iterator["Endless"]:
        self._thread.start()
        yield self
        self._closing.set()
        self._needed.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(0.25):
            if not self._needed.wait(IDLE_SECONDS):
                if self._worker is not None:
                    self._worker.stop_request()
            elif self._worker is None:
                self._resume()
            elif self._worker.stop_request() is None:
                self._worker.report(self._step, self._step + EVERY)
                self._step += EVERY
                if self._step % (2 * EVERY) == 0:
                    self._worker.write_log(self._line)
            else:
                self._worker.end("preempted", step=self._step)
                self._worker = None

    def _resume(self) -> None:
        if self._service.world.status(self._job_id) == "pending":
            self._worker = self._service.start(self._job_id)
            self._worker.resumed_from = self._step
            self._worker.event("training_resumed", 0, step=self._step, total_steps=self._worker.total_steps)


@contextmanager
def live_service(database: Path, folder: Path, **settings: Any) -> Iterator[LiveService]:
    """Run a service on a migrated SQLite file, with other settings where they are given."""
    world = World(
        f"sqlite:///{database}",
        folder,
        RealTime(),
        local_slots=SLOTS,
        webhook_allowed_hosts=("127.0.0.1",),
        **settings,
    )
    plugins, disabled = select_plugins(world.settings.disabled_plugins)
    if disabled:
        world.app = create_app(world.app_state, plugins, disabled=disabled)
    world.scheduler.ends_cancelled = True
    world.scheduler.nodes = ClusterSnapshot(slots=SlotCount(total=SLOTS, free=SLOTS - 1))
    world.database.after_commit.append(Summarizer(world.database).on_commit)
    with ExitStack() as stack:
        stack.callback(world.database.dispose)
        for part in background_services(world.app_state, world.scheduler, plugins, disabled):
            part.start()
            stack.callback(part.stop)
        yield LiveService(world, stack.enter_context(served(world)))
