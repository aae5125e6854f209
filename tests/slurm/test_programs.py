"""Programs that run unchanged on Slurm: preemption, the time limit and the warning signal, with their trackers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm_service
from tests.support.live import processes_of, wait_for_status
from tests.support.slurm_lab import SlurmLab
from tests.support.wait import wait_until
from trainyard.client import Client, run

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 400
PREAMBLE = """
import os, pathlib, signal, sys, time

folder = pathlib.Path(os.environ["TRAINYARD_CHECKPOINT_DIR"])
mark = folder / "step"
start = int(mark.read_text()) if mark.exists() else 0
pause = 0.02 if start else 0.25  # an execution that resumes ends soon, the first one only when it is stopped


def save(step):
    (folder / "new").write_text(str(step))
    (folder / "new").rename(mark)


"""
KILLED = (
    PREAMBLE
    + """
import mlflow
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("runs")
mlflow.start_run()
for step in range(start + 1, 401):
    mlflow.log_metric("stepped", 1 / step, step=step)
    mlflow.log_metric("counted", step)
    writer.add_scalar("events", step / 4, step)
    if step % 10 == 0:
        save(step)
    time.sleep(pause)
"""
)
WARNED = (
    PREAMBLE
    + """
import mlflow

warned = []
signal.signal(signal.SIGUSR1, lambda number, frame: warned.append(number))
run = None
if sys.argv[1] == "time_limit":  # before a preemption, the lab signals every process, which ends that of W&B
    import wandb
    run = wandb.init()
mlflow.start_run()
for step in range(start + 1, start + 21 if start else 401):
    if run:
        run.log({"wandb": 1 / step}, step=step)
    mlflow.log_metric("mlflow", 1 / step, step=step)
    if warned:
        print("warned at step", step, flush=True)
        save(step)
        if run:
            run.finish()
        sys.exit(7)
    time.sleep(pause)
if run:
    run.finish()
"""
)


@pytest.fixture
def client(slurm: SlurmLab, tmp_path: Path) -> Iterator[Client]:
    with slurm_service(tmp_path / "service") as service, service.client() as made:
        yield made


@pytest.fixture
def submit(client: Client, tmp_path: Path) -> Callable[..., str]:
    """Return a function that submits the text of a program, and returns the job's id."""

    def start(text: str, *arguments: str, **options: str) -> str:
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text(text)
        command = ["python", "train.py", *arguments]
        return run(command, client=client, code=code, partition="gpu", retries=0, **options).id

    return start


def test_preempted_program_goes_on_without_a_zig_zag(
    slurm: SlurmLab, client: Client, submit: Callable[..., str]
) -> None:
    job_id = submit(KILLED)
    wait_until(lambda: highest(client, job_id) > 20, 120, "the first checkpoints")
    preempt(slurm)
    assert reasons_at_the_end(client, job_id) == ["preempted", "completed"]
    steps = list(range(1, STEPS + 1))
    curves = {series.key: series for series in client.metrics(job_id, max_points=10_000).series}
    assert {name: list(curve.steps) for name, curve in curves.items()} == {
        "stepped": steps,
        "counted": list(range(STEPS)),
        "events": steps,
    }
    assert list(curves["stepped"].values) == [1 / step for step in steps]
    assert list(curves["counted"].values) == steps
    assert list(curves["events"].values) == [step / 4 for step in steps]


@pytest.mark.parametrize("cause", ["time_limit", "preempted"])
def test_program_that_saves_on_its_signal_goes_on_at_that_step(
    slurm: SlurmLab, client: Client, submit: Callable[..., str], cause: str
) -> None:
    job_id = submit(WARNED, cause, signal="SIGUSR1@60s", **({"time": "2m"} if cause == "time_limit" else {}))
    wait_until(lambda: highest(client, job_id) > 5, 120, "the first points")
    if cause == "preempted":
        preempt(slurm)
    assert reasons_at_the_end(client, job_id) == [cause, "completed"]
    log = client.logs(job_id, attempt=1).text
    lines = [line for line in log.splitlines() if line.startswith("warned at step")]
    assert len(lines) == 1, log
    first, second = sorted(client.attempts(job_id), key=lambda attempt: attempt.number)
    warned_at = int(lines[0].split()[-1])
    assert second.resumed_from_step == warned_at
    if cause == "time_limit":
        assert first.started_at is not None
        assert first.ended_at is not None
        assert 55 < (first.ended_at - first.started_at).total_seconds() < 90, "one of the two minutes"
    steps = list(range(1, warned_at + 21))
    curves = {series.key: series for series in client.metrics(job_id, max_points=10_000).series}
    trackers = ["mlflow", "wandb"] if cause == "time_limit" else ["mlflow"]
    assert {name: list(curve.steps) for name, curve in curves.items()} == dict.fromkeys(trackers, steps)
    for name, curve in curves.items():
        assert list(curve.values) == [1 / step for step in steps], name


def preempt(slurm: SlurmLab) -> None:
    slurm.run("sbatch", "-p", "high", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")


def highest(client: Client, job_id: str) -> int:
    return max((series.steps[-1] for series in client.metrics(job_id).series), default=0)


def reasons_at_the_end(client: Client, job_id: str) -> list[str | None]:
    """Wait until the job has succeeded; return why each attempt ended, and check that no process is left."""
    done = wait_for_status(client, job_id, "succeeded", "failed", "cancelled", "lost", seconds=240)
    assert done.status == "succeeded", done.status_message
    attempts = sorted(client.attempts(job_id), key=lambda attempt: attempt.number)
    for attempt in attempts:
        wait_until(lambda ended=attempt.id: not processes_of(ended), 20, "its processes to be gone")
    return [attempt.exit_reason for attempt in attempts]
