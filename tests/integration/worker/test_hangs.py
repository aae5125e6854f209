"""A run that stands still is reported within seconds, with the rank and the reason, and goes on if it can."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, wait_for
from trainyard.progress_file import read_progress

pytestmark = pytest.mark.heavy

NAMED_WITHIN_SECONDS = 30.0


@pytest.fixture(scope="module")
def service():
    with FakeService() as fake:
        yield fake


def test_waiting_rank_is_named_with_its_reason_and_the_run_goes_on(tmp_path: Path, service: FakeService) -> None:
    how, pipe = tmp_path / "how", tmp_path / "records.pipe"
    os.mkfifo(pipe)
    run = Run(tmp_path / "job", service.url, {"epochs": 100_000})
    slow, hang = {"kind": "sleep", "seconds": 0.05}, {"kind": "hang", "rank": 1, "path": str(how)}
    attempt = run.start(faults=[slow, hang])
    try:
        wait_for(lambda: service.events_of_type("stall_limit"), "enough steps to learn from", 90)
        assert service.events_of_type("stall_limit")[0]["data"] == {"phase": "training", "seconds": 20.0}
        rank = read_progress(attempt.progress, 1)[1].pid

        os.kill(rank, signal.SIGSTOP)
        stopped = next_event(service, "stall_suspected", 1)
        os.kill(rank, signal.SIGCONT)
        assert (stopped["data"]["kind"], stopped["data"]["ranks"]) == ("stopped", [1])
        assert "a signal or a debugger has stopped it. 1 rank waits for it" in stopped["message"], stopped["message"]
        # The limit is then one and a half times this wait.
        assert 20 < next_event(service, "stall_over", 1)["data"]["seconds"] < NAMED_WITHIN_SECONDS + 5

        how.write_text(str(pipe))
        reading = next_event(service, "stall_suspected", 2, 2 * NAMED_WITHIN_SECONDS)
        release(how, pipe)
        assert (reading["data"]["kind"], reading["data"]["ranks"]) == ("file", [1])
        assert f"it waits for {pipe}. Rank 1 has not entered all_reduce " in reading["message"], reading["message"]
        next_event(service, "stall_over", 2)
        assert not service.finishes
    finally:
        release(how, pipe)
        run.process.send_signal(signal.SIGTERM)
        run.wait(60)
    assert finish_of(attempt, 1).restarts == 0, "no rank has ended"
    assert processes_of(attempt) == []


def test_rank_in_another_collective_is_named_and_ends_the_run(tmp_path: Path, service: FakeService) -> None:
    service.events.clear()
    how = tmp_path / "how"
    run = Run(tmp_path / "job", service.url, {"epochs": 100_000})
    slow, hang = {"kind": "sleep", "seconds": 0.05}, {"kind": "hang", "rank": 1, "path": str(how)}
    attempt = run.start(faults=[slow, hang])
    try:
        wait_for(lambda: service.events_of_type("stall_limit"), "enough steps to learn from", 90)
        how.write_text("barrier")
        event = next_event(service, "stall_suspected", 1)
        run.wait(60)
    finally:
        assert run.process is not None
        run.process.kill()
        run.process.wait()
    record = finish_of(attempt, 1)
    assert record.failure is not None
    assert (record.reason, record.failure.type, record.failure.rank) == ("stalled", "DifferentCollectives", 1)
    assert not record.failure.final, "the first time may be an exception"
    assert event["data"]["text"] in record.failure.message
    assert processes_of(attempt) == []
    assert (event["data"]["kind"], event["data"]["ranks"]) == ("order", [1]), event
    assert "Rank 1 is in barrier " in event["message"]
    assert "but rank 0 is in all_reduce " in event["message"], event["message"]
    evidence = json.loads((run.layout.artifacts / event["data"]["evidence"]).read_text())
    assert evidence["verdict"] in event["message"]
    assert {*evidence["progress"], *evidence["states"], *evidence["collectives"]} == {"0", "1"}


def release(how: Path, pipe: Path) -> None:
    """Let the rank go on."""
    how.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def next_event(service: FakeService, type_: str, count: int, seconds: float = NAMED_WITHIN_SECONDS) -> dict[str, Any]:
    """Wait until there are `count` events of a type, and return the last one."""
    wait_for(lambda: len(service.events_of_type(type_)) >= count, type_, seconds + 5)
    return service.events_of_type(type_)[-1]
