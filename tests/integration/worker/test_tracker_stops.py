"""Planned stops and kills of programs that report to a tracker: the spool has the points of the client's own file."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code, wait_for
from tests.support.tracker_clients import CLIENTS_OF_DETAILS, Clients, import_folders, wandb_runs
from tests.support.tracker_spool import points
from trainyard.contract.layout import AttemptLayout

WANDB_PROGRAM = """
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
    """Return the losses in the client's file by the client's own step, as the client itself reads it."""
    (run,) = wandb_runs(attempt.work)
    return {line["_step"]: line["loss"] for line in run["lines"]}


def logged(attempt: AttemptLayout) -> bool:
    return attempt.rank_log(0).exists() and "300 lines" in attempt.rank_log(0).read_text()


@pytest.mark.heavy
@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param("cancel", "user_cancelled", marks=pytest.mark.slow),
        pytest.param("pause", "preempted", marks=pytest.mark.slow),
        ("signal", "preempted"),
        pytest.param("time limit", "time_limit", marks=pytest.mark.slow),
        ("kill of the client", "completed"),
    ],
)
def test_no_point_of_the_clients_file_is_lost(tmp_path: Path, end: str, reason: str, clients: Clients) -> None:
    document = {
        "task": "script",
        "argv": ["train.py", end, *import_folders(clients)],
        "code": store_code(tmp_path, WANDB_PROGRAM),
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


PROGRAM = """
import os, sys, time
{setup}
record = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(record, b"%d\\n" % os.getpid())
for step in range(1, 100_000):
    {log}
    os.write(record, b"%d\\n" % step)
    os.fsync(record)
    time.sleep(0.02)
"""
TRACKERS = {
    "wandb": ("import wandb; run = wandb.init()", 'run.log({"loss": step + 1 / step}, step=step)'),
    "mlflow": ("import mlflow; mlflow.start_run()", 'mlflow.log_metric("loss", step + 1 / step, step=step)'),
    "tensorboard": (
        "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('runs')",
        'writer.add_scalar("loss", step + 1 / step, step)',
    ),
}
"""The first line of a program, and the line that logs a step. The record has the steps for which it has returned."""
WRITER_QUEUE = 10
"""The default `max_queue` of torch's writer."""
RUNS_AT_ONCE = 5
REASONS = {"kill": "error", "cancel": "user_cancelled", "pause": "preempted", "time limit": "time_limit"}


class StoppedRun:
    """A run of a program that is stopped at a random time."""

    def __init__(self, folder: Path, tracker: str, delay: float, limit: float | None) -> None:
        folder.mkdir()
        setup, log = TRACKERS[tracker]
        self.tracker = tracker
        self.delay = delay
        self.service = FakeService()
        self._record = folder / "record"
        code = store_code(folder, PROGRAM.format(setup=setup, log=log))
        document = {"task": "script", "argv": ["train.py", str(self._record)], "code": code, "gpus": 1}
        self.run = Run(folder / "job", self.service.start().url, document, template="script_line", max_restarts=0)
        self.attempt = self.run.start(environ={"SLURM_JOB_END_TIME": str(int(time.time() + limit))} if limit else {})

    def logged(self) -> set[int]:
        return set(self._lines()[1:])

    def stop(self, end: str) -> None:
        if end == "kill":
            os.kill(self._lines()[0], signal.SIGKILL)
        elif end != "time limit":
            self.service.stop = end

    def close(self) -> None:
        """End what still runs of it."""
        if self.run.process is not None and self.run.process.poll() is None:
            self.run.process.kill()
            self.run.process.wait()
        self.service.__exit__()

    def steps_in_file(self) -> set[int]:
        """Return the steps in the client's own file. MLflow's client has none."""
        if self.tracker == "wandb":
            return set(lines_of(self.attempt))
        if self.tracker == "mlflow":
            return set()
        (folder,) = {path.parent for path in self.attempt.work.rglob("events.out.tfevents.*")}
        scalars = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload().Scalars("loss")
        return {scalar.step for scalar in scalars}

    def _lines(self) -> list[int]:
        return list(map(int, self._record.read_text().split())) if self._record.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", REASONS)
@pytest.mark.parametrize("tracker", TRACKERS)
def test_stops_at_random_times_lose_nothing(tmp_path: Path, tracker: str, end: str) -> None:
    seed = int(os.environ.get("STOPS_SEED") or random.randrange(2**32))
    print(f"STOPS_SEED={seed} repeats the times")
    delays = sorted(random.Random(seed).uniform(0.0, 8.0) for _ in range(RUNS_AT_ONCE))
    with contextlib.ExitStack() as stack:
        runs = []
        for number, delay in enumerate(delays):
            limit = 45 + delay if end == "time limit" else None
            runs.append(StoppedRun(tmp_path / str(number), tracker, delay, limit))
            stack.callback(runs[-1].close)
        for one in runs:
            wait_for(one.logged, "the first step", seconds=300)
        started = time.monotonic()
        for one in runs:
            time.sleep(max(0.0, started + one.delay - time.monotonic()))
            one.stop(end)
        for one in runs:
            one.run.wait(120)
            assert_no_point_is_lost(one, end)


def assert_no_point_is_lost(one: StoppedRun, end: str) -> None:
    assert finish_of(one.attempt, 1).reason == REASONS[end]
    stored = {step: value for key, step, value in points(one.attempt) if key == "loss"}
    assert all(value in (step + 1 / step, np.float32(step + 1 / step)) for step, value in stored.items())
    assert {step for key, step, _ in one.service.points if key == "loss"} == stored.keys()
    logged, in_file = one.logged(), one.steps_in_file()
    print(f"{len(logged)} points were logged, {len(in_file)} are in the client's file, {len(stored)} are stored")
    assert stored.keys() >= in_file
    if one.tracker == "tensorboard" and end == "kill":
        # What the queue of the writer holds then is in no file.
        missing = sorted(logged - stored.keys())
        assert missing == sorted(logged)[len(logged) - len(missing) :]
        assert len(missing) <= WRITER_QUEUE
    elif end != "kill" or one.tracker == "mlflow":
        assert stored.keys() >= logged
