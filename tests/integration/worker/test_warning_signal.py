"""A program that is warned by the signal that its spec names, and then ends in its own way."""

import signal

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code, wait_for

PROGRAM = """
import os, signal, sys, time

ready = os.path.join(os.environ["TRAINYARD_CHECKPOINT_DIR"], f"ready-{os.environ['RANK']}")
end = sys.argv[1]


def save(number, frame):
    print("warned by", signal.Signals(number).name, flush=True)
    if end == "raise":
        raise ValueError("the handler has a fault")
    os._exit(int(end))


if sys.argv[2] != "SIGINT":
    signal.signal(signal.Signals[sys.argv[2]], save)
open(ready, "w").close()
time.sleep(60)
"""


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize(
    ("end", "name", "reason"),
    [
        ("0", "SIGUSR1", "preempted"),
        pytest.param("3", "SIGTERM", "preempted", marks=pytest.mark.heavy),
        pytest.param("0", "SIGINT", "preempted", marks=pytest.mark.heavy),
        pytest.param("raise", "SIGUSR1", "error", marks=pytest.mark.heavy),
    ],
)
def test_end_after_the_warning_continues_the_job(tmp_path, end, name, reason):
    document = {
        "task": "script",
        "argv": ["train.py", end, name],
        "code": store_code(tmp_path, PROGRAM),
        "gpus": 2,
        "restart": {"signal": {"name": name}},
    }
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)
        attempt = run.start()
        wait_for(lambda: len(list(run.layout.checkpoints.glob("ready-*"))) == 2, "both ranks")
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        run.wait()
    record = finish_of(attempt, 1)
    assert record.reason == reason
    log = attempt.rank_log(0).read_text()
    assert ("KeyboardInterrupt" if name == "SIGINT" else f"warned by {name}") in log


@pytest.mark.cpu_seconds(8)
def test_cancelled_program_ends_by_its_own_handler(tmp_path):
    """It is not started again, whatever its exit code is, and the spec names no signal."""
    code = store_code(tmp_path, PROGRAM)
    document = {"task": "script", "argv": ["train.py", "3", "SIGTERM"], "code": code, "gpus": 2}
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)
        attempt = run.start()
        wait_for(lambda: len(list(run.layout.checkpoints.glob("ready-*"))) == 2, "both ranks")
        service.stop = "cancel"
        run.wait(25)
    record = finish_of(attempt, 1)
    assert (record.reason, record.restarts) == ("user_cancelled", 0)
    for rank in (0, 1):
        assert attempt.rank_log(rank).read_text().count("warned by SIGTERM") == 1
