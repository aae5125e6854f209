"""Ranks that are forks of one process train, stop, stall and end as ranks that torchrun starts."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, spooled, wait_for
from trainyard.progress_file import read_progress
from worker.core.processes import children, forked_ranks

FORKED: dict[str, Any] = {"restart": {"fork_ranks": True}, "checkpoint": {"every_steps": 5}}
SLOW = {"kind": "sleep", "seconds": 0.05}


@pytest.fixture(scope="module")
def service():
    with FakeService() as fake:
        yield fake


def torchrun_of(run: Run) -> int:
    """Return the process of torchrun, the launcher's child with children of its own."""
    assert run.process is not None
    return next((pid for pid in children(run.process.pid) if children(pid)), 0)


@pytest.mark.cpu_seconds(15)
def test_losses_and_the_restart_are_those_of_ranks_without_forks(tmp_path: Path, service: FakeService) -> None:
    plain = Run(tmp_path / "plain", service.url, {"gpus": 2, "steps": 20, "epochs": None})
    expected = spooled(plain.run(), 1)
    run = Run(tmp_path / "job", service.url, {"gpus": 2, "steps": 20, "epochs": None, **FORKED})
    saved = str(run.manifest(10))
    waits = {"kind": "wait_for_checkpoint", "path": saved, "step": 13, "rank": 1, "restart": 0}
    attempt = run.run(faults=[waits, {"kind": "kill", "step": 13, "rank": 1, "restart": 0}])
    record = finish_of(attempt, 2)
    assert (record.reason, record.step, record.restarts) == ("completed", 20, 1)
    assert spooled(attempt, 2) == {step: loss for step, loss in expected.items() if step > 10}
    (event,) = service.events_of_type("restarted_in_place")
    killed = next(line for line in attempt.rank_log(1).read_text().splitlines() if "restart 0, pid" in line)
    assert f"rank 1 (pid {killed.rpartition(' ')[2]}) was ended by SIGKILL" in event["message"], event["message"]
    assert processes_of(attempt) == []


@pytest.mark.heavy
def test_stop_request_saves_and_ends_forked_ranks(tmp_path: Path, service: FakeService) -> None:
    run = Run(tmp_path / "job", service.url, {"gpus": 2, "epochs": 10_000, **FORKED})
    attempt = run.start(faults=[SLOW])
    wait_for(lambda: run.layout.complete_checkpoints(), "a checkpoint")
    assert sorted(forked_ranks(torchrun_of(run))) == [0, 1]
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    run.wait(60)
    record = finish_of(attempt, 1)
    assert record.reason == "preempted"
    assert run.layout.complete_checkpoints()[-1].step == record.step
    assert processes_of(attempt) == []


@pytest.mark.heavy
def test_stalled_fork_is_named_and_its_stack_is_logged_once(tmp_path: Path, service: FakeService) -> None:
    changes = {"gpus": 2, "health.stall_timeout_minutes": 0.05, **FORKED}
    run = Run(tmp_path / "job", service.url, changes)
    attempt = run.run(faults=[{"kind": "sleep", "rank": 1, "step": 3, "seconds": 600}])
    record = finish_of(attempt, 1)
    assert record.failure is not None
    assert (record.reason, record.failure.rank) == ("stalled", 1)
    assert "_inject" in record.failure.traceback
    assert attempt.rank_log(1).read_text().count("in _inject") == 1
    assert processes_of(attempt) == []


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["launcher", "torchrun", "server"])
def test_nothing_is_left_when_a_process_is_killed(tmp_path: Path, service: FakeService, victim: str) -> None:
    run = Run(tmp_path / "job", service.url, {"gpus": 2, "epochs": 10_000, **FORKED}, max_restarts=1)
    attempt = run.start(faults=[SLOW])
    wait_for(lambda: len(read_progress(attempt.progress, 1)) == 2, "the ranks")
    torchrun, launcher = torchrun_of(run), run.process
    assert launcher is not None
    ranks = forked_ranks(torchrun)
    server = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill({"launcher": launcher.pid, "torchrun": torchrun, "server": server}[victim], signal.SIGKILL)
    if victim == "server":
        # The next start does without it.
        wait_for(lambda: len(read_progress(attempt.progress, 2)) == 2, "the ranks of the next start")
        assert forked_ranks(torchrun) == {}
        launcher.send_signal(signal.SIGTERM)
    launcher.wait(60)
    limit = time.monotonic() + 10
    while processes_of(attempt) and time.monotonic() < limit:
        time.sleep(0.05)
    assert processes_of(attempt) == []


@pytest.mark.heavy
def test_ranks_with_variables_of_their_own_are_not_forked(tmp_path: Path, service: FakeService) -> None:
    """A library may read a variable only while it is imported."""
    own = {"environment": {"variables": {"OMP_NUM_THREADS": "1"}}}
    run = Run(tmp_path / "job", service.url, {"gpus": 2, "epochs": 10_000, **FORKED, **own})
    attempt = run.start(faults=[SLOW])
    wait_for(lambda: len(read_progress(attempt.progress, 1)) == 2, "the ranks")
    assert forked_ranks(torchrun_of(run)) == {}
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    run.wait(60)
    assert finish_of(attempt, 1).reason == "preempted"
