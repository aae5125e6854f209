"""Planned stops and kills of programs that report to W&B: the spool has the points of the client's own file."""

import signal
import time
from pathlib import Path

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code, wait_for
from tests.support.tracker_clients import CLIENTS_OF_DETAILS, Clients, import_folders
from tests.support.tracker_spool import points
from trainyard.contract.layout import AttemptLayout
from worker.trackers.wandb_file import HISTORY, RunFile, parse_history

PROGRAM = """
import glob, os, signal, sys, time

end, *sys.path[:0] = sys.argv[1:]
import wandb

run = wandb.init()
for step in range(300):
    run.log({"loss": 1 / (step + 1), "epoch": step // 10}, step=step * 2)
    if step == 150:
        run.define_metric("loss", step_metric="epoch")
print("300 lines", flush=True)
if end == "kill of the client":
    time.sleep(1.5)
    children = [pid for path in glob.glob("/proc/self/task/*/children") for pid in open(path).read().split()]
    for pid in children:
        if "wandb-core" in open(f"/proc/{pid}/cmdline").read():
            os.kill(int(pid), signal.SIGKILL)
    time.sleep(0.5)
    os._exit(0)
while True:
    time.sleep(0.1)
"""


def lines_of(attempt: AttemptLayout) -> dict[int, float]:
    """Return the losses in the client's file by the client's own step."""
    (path,) = attempt.root.rglob("run-2*/run-*.wandb")
    file = RunFile(str(path), str(path))
    lines = [parse_history(message) for kind, message, _ in file.unread() if kind == HISTORY]
    file.close()
    return {line["_step"]: line["loss"] for line in lines}


def logged(attempt: AttemptLayout) -> bool:
    return attempt.rank_log(0).exists() and "300 lines" in attempt.rank_log(0).read_text()


@pytest.mark.heavy
@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("cancel", "user_cancelled"),
        ("pause", "preempted"),
        ("signal", "preempted"),
        ("time limit", "time_limit"),
        ("kill of the client", "completed"),
    ],
)
def test_no_point_of_the_clients_file_is_lost(tmp_path: Path, end: str, reason: str, clients: Clients) -> None:
    document = {
        "task": "script",
        "argv": ["train.py", end, *import_folders(clients)],
        "code": store_code(tmp_path, PROGRAM),
        "gpus": 1,
    }
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=1)
        limit = {"SLURM_JOB_END_TIME": str(int(time.time()) + 30)} if end == "time limit" else {}
        attempt = run.start(environ=limit)
        wait_for(lambda: logged(attempt), "the last line")
        if end in ("cancel", "pause"):
            service.stop = end
        elif end == "signal":
            assert run.process is not None
            run.process.send_signal(signal.SIGTERM)
        run.wait(60)
    assert finish_of(attempt, 1).reason == reason
    lines = {(step // 20, value) for step, value in lines_of(attempt).items()}
    stored = {(step, value) for key, step, value in points(attempt) if key == "loss"}
    assert stored >= lines
    if end != "kill of the client":
        assert len(stored) == len(lines) == 300
