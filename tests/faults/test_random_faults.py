"""Random orders of faults: a cluster with delays, purged jobs, lost responses and reused ids, and service crashes.

Hypothesis chooses the events. The promises must hold after each of them, and at the end after all faults are over.
"""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from service.core.failpoints import no_failpoint
from service.db.migrate import upgrade
from service.reconciler.reconciler import Reconciler
from service.scheduler.base import EndedAs
from tests.faults.drive import ServiceStage
from tests.faults.sim_slurm import Mode, SimJob
from tests.faults.test_crashes import FAILPOINTS
from tests.support.world import SPEC
from trainyard.contract.wire.jobs import TERMINAL

OTHER_FAILPOINTS = ("accept", "claim", "finish", "close", "steer", "delete", "remove")
LABELS = sorted({label for label, _ in FAILPOINTS if not label.startswith(OTHER_FAILPOINTS)})
MODES: list[Mode] = ["accept", "lose-answer", "drop", "die-after"]
ACCOUNTING_DELAYS = [0.0, 100.0, 500.0]
END_REASONS: list[EndedAs] = ["node_failure", "preempted", "cancelled", "failed", "time_limit", "out_of_memory"]


class Campaign(RuleBasedStateMachine):
    """A service, its cluster, and a few jobs."""

    template: ClassVar[Path]

    @initialize(mode=st.sampled_from(MODES), lag=st.sampled_from(ACCOUNTING_DELAYS))
    def begin(self, mode: Mode, lag: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trainyard-campaign-"))
        shutil.copy(self.template, self.folder / "test.sqlite")
        self.stage = ServiceStage(self.folder, f"sqlite:///{self.folder / 'test.sqlite'}")
        self.slurm = self.stage.slurm
        self.jobs: list[str] = []
        self.after: dict[str, str] = {}
        """The job for whose success each job waits that waits for one."""
        self.ended: dict[str, str] = {}
        self.former: list[Reconciler] = []
        self.slurm.mode, self.slurm.lag_seconds = mode, lag
        self.submit(now=True, waits=False)

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        try:
            self._recover_and_check()
        finally:
            self.stage.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(now=st.booleans(), waits=st.booleans())
    def submit(self, now: bool, waits: bool) -> None:
        after = self.jobs[-1:] if waits else []
        spec = {**SPEC, "restart": {"max_retries": 1}, "after": after}
        self.jobs.append(self.stage.world.client.post("/v1/jobs", json=spec).json()["id"])
        self.after.update(zip(self.jobs[-1:], after, strict=False))
        if now:
            self.tick(1)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.jobs:
            job = data.draw(st.sampled_from(self.jobs))
            assert self.stage.world.client.post(f"/v1/jobs/{job}/cancel").status_code in (202, 409)

    @rule(data=st.data(), verb=st.sampled_from(["pause", "pause", "resume"]))
    def pause_or_resume(self, data: st.DataObject, verb: str) -> None:
        if self.jobs:
            job = data.draw(st.sampled_from(self.jobs))
            assert self.stage.world.client.post(f"/v1/jobs/{job}/{verb}").status_code in (202, 409)

    @rule(data=st.data(), start=st.sampled_from(["checkpoint", "scratch"]))
    def retry(self, data: st.DataObject, start: str) -> None:
        over = [job for job in self.jobs if self.ended.get(job) in ("failed", "cancelled")]
        if over:
            self._retry(data.draw(st.sampled_from(over)), start)

    @rule(seconds=st.sampled_from([1, 20, 61, 200, 700]))
    def tick(self, seconds: int) -> None:
        try:
            self.stage.tick(seconds)
        except SystemExit:
            self._restart()

    @rule(label=st.sampled_from(LABELS))
    def tick_and_exit(self, label: str) -> None:
        def crash(passed: str) -> None:
            if passed == label:
                raise SystemExit(label)

        self.stage.world.app_state.failpoint = crash
        self.tick(1)
        self.stage.world.app_state.failpoint = no_failpoint

    @rule(seconds=st.sampled_from([5, 20]))
    def take_over(self, seconds: int) -> None:
        self.stage.pass_time(seconds)
        self.former.append(self.stage.world.reconciler)
        owner = f"owner-{self.stage.world.clock().timestamp()}"
        self.stage.world.reconciler = self.stage.world.new_reconciler(owner)

    @rule()
    def run_former_leader(self) -> None:
        for reconciler in self.former[-1:]:
            with suppress(SystemExit):
                reconciler.run_once()

    @rule(mode=st.sampled_from(MODES), lag=st.sampled_from(ACCOUNTING_DELAYS))
    def set_sbatch_mode(self, mode: Mode, lag: float) -> None:
        self.slurm.mode, self.slurm.lag_seconds = mode, lag

    @rule(down=st.booleans(), accounting=st.booleans())
    def set_slurm_state(self, down: bool, accounting: bool) -> None:
        self.slurm.down, self.slurm.accounting = down, accounting

    @rule()
    def start_pending(self) -> None:
        for sim in self.stage.in_state("pending"):
            self.stage.start(sim)

    @rule(reason=st.sampled_from(["completed", "completed", "preempted", "error", "node_failure"]))
    def end_worker(self, reason: str) -> None:
        for sim in self._ours("running")[:1]:
            self.stage.finish(sim, reason, step=20)

    @rule(end_state=st.sampled_from(END_REASONS))
    def end_without_exit_record(self, end_state: EndedAs) -> None:
        for sim in self._ours("running")[:1]:
            self.slurm.end(sim, end_state)

    @rule()
    def end_cancelled(self) -> None:
        for sim in self._ours("running"):
            if sim.cancel_requested:
                self.slurm.end(sim, "cancelled")

    @rule()
    def purge_ended(self) -> None:
        for sim in self.stage.in_state("ended"):
            sim.purged = True

    @rule(forgotten=st.booleans())
    def forget_pending(self, forgotten: bool) -> None:
        for sim in self._ours("pending"):
            sim.forgotten = forgotten

    @rule()
    def reuse_id(self) -> None:
        purged = [sim for sim in self.stage.in_state("ended") if sim.purged]
        if purged:
            foreign_job = SimJob(purged[0].id, "somebody-elses", self.folder, 0.0, state="running", granted=True)
            self.slurm.jobs.append(foreign_job)

    @invariant()
    def assert_promises(self) -> None:
        if not hasattr(self, "stage"):
            return
        ours = [sim for sim in self.slurm.jobs if sim.tag.startswith("ty-")]
        foreign_jobs = [sim for sim in self.slurm.jobs if not sim.tag.startswith("ty-")]
        assert not [sim for sim in foreign_jobs if sim.cancel_requested], "somebody else's job was cancelled"
        for tag in {sim.tag for sim in ours}:
            assert len([sim for sim in ours if sim.tag == tag and sim.granted]) <= 1, "an attempt ran twice"
        for job in self.jobs:
            running = [sim for sim in self._jobs_of(job) if sim.state == "running" and sim.granted]
            assert len(running) <= 1, "two attempts of one job run at once"
            job_resource = self.stage.world.job(job)
            if job_resource["status"] in TERMINAL:
                assert not running, "the job has ended but still runs"
                assert self.ended.setdefault(job, job_resource["status"]) == job_resource["status"], (
                    "the job ended twice"
                )
            else:
                assert job not in self.ended, "the job left a terminal status without a retry"
                assert job_resource["status_message"], "the status message is empty"
        for job, first in self.after.items():
            assert not self._jobs_of(job) or self.ended.get(first) == "succeeded", "a job was submitted too early"

    def _ours(self, state: str) -> list[SimJob]:
        return [sim for sim in self.stage.in_state(state) if sim.tag.startswith("ty-")]

    def _jobs_of(self, job: str) -> list[SimJob]:
        return [sim for sim in self.slurm.jobs if job in sim.folder.parts]

    def _retry(self, job: str, start: str) -> None:
        answer = self.stage.world.client.post(f"/v1/jobs/{job}/retry", json={"from": start})
        assert answer.status_code == 202, answer.text
        del self.ended[job]

    def _retry_prerequisites(self) -> None:
        for job, first in self.after.items():
            if job not in self.ended and self.ended.get(first) in ("failed", "cancelled"):
                self._retry(first, "checkpoint")

    def _restart(self) -> None:
        world = self.stage.world
        world.app_state.failpoint = no_failpoint
        world.reconciler = world.new_reconciler("one")
        self.stage.pass_time(20)

    def _recover_and_check(self) -> None:
        self.slurm.mode, self.slurm.lag_seconds, self.slurm.down, self.slurm.accounting = "accept", 0.0, False, True
        self.stage.world.app_state.failpoint = no_failpoint
        for _ in range(60):
            for job in self.jobs:
                self.stage.world.client.post(f"/v1/jobs/{job}/resume")
            self.tick(61)
            self.end_cancelled()
            for sim in self._ours("running"):
                self.stage.finish(sim, "completed", step=20)
            self.start_pending()
            self.assert_promises()
            self._retry_prerequisites()
            if all(self.stage.world.status(job) in TERMINAL for job in self.jobs):
                break
        statuses: dict[str, Any] = {job: self.stage.world.job(job)["status"] for job in self.jobs}
        assert set(statuses.values()) <= TERMINAL, statuses
        assert not self._ours("running"), "a job of the service still runs"


@pytest.mark.parametrize(
    "examples", [pytest.param(10, marks=pytest.mark.heavy), pytest.param(250, marks=pytest.mark.slow)]
)
def test_job_completes_under_any_order_of_faults(examples: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("campaign") / "migrated.sqlite"
    upgrade(f"sqlite:///{path}")
    Campaign.template = path
    health = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    chosen = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, database=None, suppress_health_check=health
    )
    run_state_machine_as_test(Campaign, settings=chosen)
