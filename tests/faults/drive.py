"""The environment of a service that is killed: the cluster, the workers and the user of a test.

Each step depends only on the present state, so that a script can continue after a crash.
"""

import json
from pathlib import Path
from typing import Any

from tests.faults.sim_slurm import SimJob, SimSlurm
from tests.support.world import SPEC, FakeClock, FakeWorker, World
from trainyard.contract.layout import AttemptLayout


class ServiceStage:
    """A service, and a database, a cluster and a clock that outlive it."""

    def __init__(self, folder: Path, url: str) -> None:
        clock = FakeClock()
        self.start_time = clock.now
        self._clock_file = folder / "clock"
        if self._clock_file.exists():
            clock.advance(float(self._clock_file.read_text()))
        self.world = World(url, folder / "state", backend="slurm")
        self.world.clock = self.world.app_state.clock = clock
        self.slurm = SimSlurm(clock, folder / "slurm.pickle")
        self.world.scheduler = self.slurm  # type: ignore[assignment]
        self.world.reconciler = self.world.new_reconciler("one")

    def submit(self, **changes: Any) -> str:
        """Submit the script's only job with an idempotency key, so that a repeated call returns the same job."""
        key = {"Idempotency-Key": "the-one"}
        answer = self.world.client.post("/v1/jobs", json={**SPEC, **changes}, headers=key)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def tick(self, seconds: float = 1.0) -> None:
        self.world.reconciler.run_once()
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self._clock_file.write_text(str((self.world.clock.now - self.start_time).total_seconds()))

    def start(self, sim: SimJob) -> None:
        """Start a job on the cluster and let its worker claim the attempt; a worker with a rejected claim exits."""
        sim.state, sim.forgotten = "running", False
        self.slurm.save()
        self._claim(sim)

    def finish(self, sim: SimJob, reason: str, **extra: Any) -> None:
        """Report the worker's exit and end the job. A worker without an answer to its claim repeats the claim first."""
        if not sim.granted:
            self._claim(sim)
        if sim.granted:
            self.worker(sim).finish(reason, **extra)
            self.slurm.end(sim, "completed")

    def _claim(self, sim: SimJob) -> None:
        answer = self.worker(sim).claim(f"nonce-of-job-{sim.id}", sim.id)
        sim.granted = answer.status_code == 200
        if not sim.granted:
            sim.state, sim.end_state = "ended", "completed"
        self.slurm.save()

    def worker(self, sim: SimJob) -> FakeWorker:
        """Return the worker of the job's attempt folder, with the token in it."""
        layout = AttemptLayout(sim.folder)
        launch = json.loads(layout.launch.read_text())
        worker = FakeWorker(self.world.new_client(layout.token.read_text().strip()), launch["attempt_id"], self.world)
        worker.execution = launch["execution"]
        return worker

    def in_state(self, state: str) -> list[SimJob]:
        return [sim for sim in self.slurm.jobs if sim.state == state]

    def close(self) -> None:
        self.world.database.dispose()
