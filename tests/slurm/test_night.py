"""A night of random events on a real Slurm: every job ends well or by its own fault, runs once at a time, and loses
no point."""

import itertools
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import slurm_service
from tests.slurm.test_cancel import ALIVE, processes_below
from tests.support.live import losses
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client, JobHandle, TrainyardError
from trainyard.contract.layout import write_atomic
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(7200)]

EVENTS = int(os.environ.get("NIGHT_EVENTS") or 500)
REJECTED = "exceeds the limit of partition gpu"
"""Of a job that was submitted just before the service saw a lowered limit."""
JOBS, STEPS, OWN_FAULT = 40, 30, "the data of step 9 is broken"
TURNS = 30
"""Of two seconds, between two requests to submit a job at once."""
FAST_CONFIRMATION: dict[str, Any] = {"slurm_submit_timeout_seconds": "20", "slurm_confirm_absence_seconds": "15"}
PROGRAM = f"""
import json, os, sys, time
from pathlib import Path
from trainyard.script import checkpoint_dir, report

run_log, name, fault = sys.argv[1:]
state = checkpoint_dir() / "state.json"
done = json.loads(state.read_text()) if state.exists() else 0
handle = os.open(run_log, os.O_WRONLY | os.O_APPEND)
for step in range(done + 1, {STEPS} + 1):
    os.write(handle, f"{{name}} {{os.environ['SLURM_JOB_ID']}} {{step}}\\n".encode())
    if fault == "fails" and step == 9:
        raise ValueError({OWN_FAULT!r})
    report(step, {{"train/loss": 1 / step}}, total_steps={STEPS})
    temporary = state.with_suffix(".new")
    temporary.write_text(json.dumps(step))
    temporary.rename(state)
    time.sleep(0.5)
"""


class Night:
    """What happens to a cluster and its service. A method that breaks something repairs it when it is called again."""

    def __init__(self, slurm: SlurmLab, service: ServiceProcess, code: Path, run_log: Path, rng: random.Random) -> None:
        self._slurm, self._service, self._rng = slurm, service, rng
        self._code, self._run_log = code, run_log
        self._broken: dict[str, Callable[[], object]] = {}
        """Repairs of what is broken, by the event."""
        self.jobs: dict[str, str] = {}
        """Ids by name."""
        self.cancelled: set[str] = set()
        self.ended_by_hand: set[str] = set()

    def events(self) -> list[Callable[[], None]]:
        users = [self.submit] * 3 + [self.cancel, self.pause]
        nodes = [self.drain, self.kill_node, self.lose_runs, self.fail_prolog]
        site = [
            self.toggle_controller,
            self.toggle_accounting,
            self.lower_limit,
            self.close_partition,
            self.kill_service,
        ]
        return [*users, *nodes, *site, self.preempt, self.preempt, self.scancel, self.requeue, self.hold, self.suspend]

    def submit(self) -> None:
        if len(self.jobs) >= JOBS:
            return
        name = f"job-{len(self.jobs)}"
        argv = ["train.py", str(self._run_log), name, "fails" if len(self.jobs) % 8 == 7 else "works"]
        # What is longer than the limit of the partition is rejected at once.
        minutes = 1 if "limit" in self._broken else 30
        where = {"partition": "gpu", "gpus_per_node": 1, "cpus_per_gpu": 4, "time_limit_minutes": minutes}
        spec: dict[str, Any] = {"name": name, "task": "script", "argv": argv, "gpus": 1, "resources": where}
        spec["restart"] = {"max_retries": 0}
        with suppress(TrainyardError), self._service.client() as client:
            self.jobs[name] = client.submit(spec, code=self._code, idempotency_key=name).id

    def cancel(self) -> None:
        if len(self.jobs) > 5 and len(self.cancelled) < 3:
            name, job_id = self._rng.choice(list(self.jobs.items()))
            with suppress(TrainyardError), self._service.client() as client:
                client.cancel(job_id)
                self.cancelled.add(name)

    def pause(self) -> None:
        if self.jobs:
            job_id = self._rng.choice(list(self.jobs.values()))
            with suppress(TrainyardError), self._service.client() as client:
                client.pause(job_id)

    def kill_service(self) -> None:
        self._service.kill()
        self._service.start()

    def toggle_controller(self) -> None:
        self._toggle("controller", self._slurm.stop_controller, self._slurm.start_controller)

    def toggle_accounting(self) -> None:
        self._toggle("accounting", self._slurm.stop_accounting, self._slurm.start_accounting)

    def drain(self) -> None:
        node = self._node()
        drained = ("update", f"nodename={node}", "state=drain", "reason=a disk")
        self._toggle("drain", lambda: self._control(*drained), self._resume_nodes)

    def kill_node(self) -> None:
        node = self._node()
        self._slurm.stop_node(node)
        self._slurm.start_node(node)

    def lose_runs(self) -> None:
        node, runs = self._node(), self._service.runs_dir

        def start(without: Path | None) -> None:
            self._slurm.stop_node(node)
            self._slurm.start_node(node, without=without)

        self._toggle("runs", lambda: start(runs), lambda: start(None))

    def fail_prolog(self) -> None:
        prolog, before = self._slurm.root / "prolog", self._slurm.conf.read_text()
        prolog.write_text("#!/bin/sh\nexit 1\n")
        prolog.chmod(0o755)

        def configure(text: str) -> None:
            # A controller that starts meanwhile must not read a part of it.
            write_atomic(self._slurm.conf, text)
            self._control("reconfigure")
            self._resume_nodes()

        with_prolog = f"{before}\nProlog={prolog}\nPrologFlags=Alloc\n"
        self._toggle("prolog", lambda: configure(with_prolog), lambda: configure(before))

    def lower_limit(self) -> None:
        limits = [("update", "partitionname=gpu", f"maxtime={limit}") for limit in ("1", "UNLIMITED")]
        self._toggle("limit", *(lambda one=one: self._control(*one) for one in limits))

    def close_partition(self) -> None:
        states = [self._rng.choice(["DRAIN", "DOWN", "INACTIVE"]), "UP"]
        changes = [("update", "partitionname=gpu", f"state={state}") for state in states]
        self._toggle("partition", *(lambda one=one: self._control(*one) for one in changes))

    def preempt(self) -> None:
        self._try("sbatch", "-p", "high", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")

    def scancel(self) -> None:
        self._to_a_job("RUNNING,PENDING", lambda number: ("scancel", number))

    def requeue(self) -> None:
        self._to_a_job("RUNNING", lambda number: ("scontrol", "requeue", number))

    def hold(self) -> None:
        self._to_a_job("PENDING", lambda number: ("scontrol", "hold", number))

    def suspend(self) -> None:
        self._to_a_job("RUNNING", lambda number: ("scontrol", "suspend", number))

    def release(self) -> None:
        """Undo holds and suspensions, and repair nodes, as an administrator does: a late end drains some of them."""
        self._resume_nodes()
        with suppress(RuntimeError):
            for number, _, state in self._slurm.jobs(states="PENDING,SUSPENDED"):
                self._try("scontrol", "resume" if state == "SUSPENDED" else "release", number)

    def recover(self) -> None:
        """Repair all, the controller first: it executes the other repairs."""
        for name in sorted(self._broken, key=lambda name: name != "controller"):
            self._broken.pop(name)()
        self.release()

    def _toggle(self, name: str, break_it: Callable[[], object], repair: Callable[[], object]) -> None:
        if name in self._broken:
            self._broken.pop(name)()
        else:
            break_it()
            self._broken[name] = repair

    def _node(self) -> str:
        return self._rng.choice(["node1", "node2"])

    def _resume_nodes(self) -> None:
        for node in ("node1", "node2"):
            # Only a node that is out of service can be resumed.
            self._control("update", f"nodename={node}", "state=resume")

    def _control(self, *arguments: str) -> None:
        self._try("scontrol", *arguments)

    def _try(self, *command: str) -> None:
        """Run a command, if there is a controller that accepts it."""
        if "controller" not in self._broken:
            with suppress(RuntimeError):
                self._slurm.run(*command)

    def _to_a_job(self, states: str, command: Callable[[str], tuple[str, ...]]) -> None:
        if "controller" in self._broken:
            return
        with suppress(RuntimeError):
            if ours := [number for number, name, _ in self._slurm.jobs(states=states) if name.startswith("ty-")]:
                self._slurm.run(*command(self._rng.choice(ours)))


def continue_all(client: Client, night: Night, until: float) -> dict[str, JobHandle]:
    """Let waiting jobs go on soon, until all have ended; return them by name."""
    for turn in itertools.count():
        jobs = {job.name: job for job in client.jobs()}
        rejected = [job for job in jobs.values() if job.status == "failed" and REJECTED in job.status_message]
        if {job.status for job in jobs.values()} <= TERMINAL and not rejected:
            return jobs
        assert time.monotonic() < until, [(job.name, job.status, job.status_message) for job in jobs.values()]
        night.release()
        for job in rejected:
            client.retry(job.id)
        for job in jobs.values():
            with suppress(TrainyardError):
                if job.status == "paused":
                    client.resume(job.id)
                elif job.status == "queued" and turn % TURNS == 0:
                    # Each such request submits the job anew, which waits up to half an hour after events of the site.
                    client.retry(job.id, resources={"time_limit_minutes": 10 + turn // TURNS % 20})
        time.sleep(2)
    raise AssertionError("unreachable")


def test_random_events_end_no_job(accounted: SlurmLab, tmp_path: Path) -> None:
    seed = int(os.environ.get("NIGHT_SEED") or random.randrange(2**32))
    print(f"NIGHT_SEED={seed} NIGHT_EVENTS={EVENTS} repeats the events")
    rng, code, run_log = random.Random(seed), tmp_path / "code", tmp_path / "run_log"
    code.mkdir()
    run_log.touch()
    (code / "train.py").write_text(PROGRAM)
    with slurm_service(tmp_path / "service", **FAST_CONFIRMATION) as service:
        night = Night(accounted, service, code, run_log, rng)
        try:
            for _ in range(EVENTS):
                event = rng.choice(night.events())
                print(f"{time.monotonic():.1f} {event.__name__}", flush=True)
                event()
                time.sleep(rng.uniform(0, 2))
        finally:
            night.recover()
        with service.client() as client:
            jobs = continue_all(client, night, time.monotonic() + 1800)
            points = {name: losses(client, job.id) for name, job in jobs.items() if job.status == "succeeded"}
        assert set(jobs) == set(night.jobs)
        for name, job in jobs.items():
            require_true_cause(name, job, night)
        assert all(of_job == {step: repr(1 / step) for step in range(1, STEPS + 1)} for of_job in points.values())
        wait_until(lambda: not accounted.jobs(states=ALIVE), 60, "an empty queue")
        wait_until(lambda: not processes_below(service.runs_dir), 30, "no process to be left")
    require_one_execution_at_a_time(run_log.read_text().splitlines())


def require_true_cause(name: str, job: JobHandle, night: Night) -> None:
    """Fail unless the job ended well, or for the reason that the night knows."""
    if job.status == "cancelled":
        assert name in night.cancelled or job.status_reason == "cancelled_outside", job
    elif int(name.removeprefix("job-")) % 8 == 7:
        assert (job.status, OWN_FAULT in job.status_message) == ("failed", True), job
    else:
        assert job.status == "succeeded", job


def require_one_execution_at_a_time(lines: list[str]) -> None:
    """Fail if steps of two Slurm jobs of one job alternate."""
    ran: dict[str, list[str]] = {}
    for name, number, _ in map(str.split, lines):
        numbers = ran.setdefault(name, [])
        if not numbers or numbers[-1] != number:
            assert number not in numbers, f"{name} ran in two Slurm jobs at once"
            numbers.append(number)
