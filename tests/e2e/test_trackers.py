"""Programs that report through their tracker, unchanged, with the real service and its local backend."""

from pathlib import Path

import pytest

from tests.support.live import wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = pytest.mark.e2e

PROGRAM = """
import os, signal, time
import mlflow

folder = os.environ["TRAINYARD_CHECKPOINT_DIR"]
mark = os.path.join(folder, "step")
start = int(open(mark).read()) if os.path.exists(mark) else 0
mlflow.set_experiment("digits")
with mlflow.start_run():
    mlflow.log_params({"lr": 3e-4, "depth": 2})
    for step in range(start + 1, 31):
        mlflow.log_metric("loss", 1 / step, step=step)
        if step == 10:
            open(mark, "w").write("10")
        if step == 14 and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
    mlflow.log_text("done", "notes/end.txt")
"""


def test_mlflow_program_is_live_and_replaces_points_after_a_resume(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = {"name": "tracked", "task": "script", "argv": ["train.py"]}
    job = client.submit(spec, code=tmp_path)
    wait_until(lambda: (client.job(job.id).progress or 0) and client.metrics(job.id).series, 60, "the first point")
    assert client.job(job.id).status == "running"
    wait_for_status(client, job.id, "succeeded")
    (curve,) = client.metrics(job.id).series
    assert (curve.key, curve.steps) == ("loss", list(range(1, 31)))
    assert curve.values == [1 / step for step in range(1, 31)]
    ended = client.job(job.id).resource
    assert ended.parameters == {"lr": 3e-4, "depth": 2}
    assert ended.progress is not None
    assert ended.progress.step == 30
    assert [match.id for match in client.jobs(parameters={"lr": "3e-4"})] == [job.id]
    assert any(artifact.path.endswith("end.txt") for artifact in client.artifacts(job.id))


WANDB_PROGRAM = """
import os, signal, time
import wandb

folder = os.environ["TRAINYARD_CHECKPOINT_DIR"]
mark = os.path.join(folder, "step")
start = int(open(mark).read()) if os.path.exists(mark) else 0
run = wandb.init(project="digits", config={"lr": 3e-4, "depth": 2})
for step in range(start + 1, 31):
    run.log({"loss": 1 / step}, step=step)
    if step == 10:
        open(mark, "w").write("10")
    if step == 14 and start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
run.finish()
"""


def test_wandb_program_is_live_and_replaces_points_after_a_resume(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WANDB_PROGRAM)
    job = client.submit({"name": "tracked", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_until(lambda: client.metrics(job.id).series, 60, "the first point")
    assert client.job(job.id).status == "running"
    wait_for_status(client, job.id, "succeeded")
    (curve,) = client.metrics(job.id).series
    assert (curve.key, curve.steps) == ("loss", list(range(1, 31)))
    assert curve.values == [1 / step for step in range(1, 31)]
    assert client.job(job.id).resource.parameters == {"lr": 3e-4, "depth": 2}


def test_points_survive_an_absent_service(service: ServiceProcess, client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("start == 0", "False"))
    job = client.submit({"name": "absent", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_until(lambda: client.metrics(job.id).series, 60, "the first point")
    service.kill()
    service.start()
    service.client().close()
    wait_for_status(client, job.id, "succeeded")
    (curve,) = client.metrics(job.id).series
    assert curve.steps == list(range(1, 31))


TENSORBOARD_PROGRAM = """
import os, signal, time
from torch.utils.tensorboard import SummaryWriter

folder = os.environ["TRAINYARD_CHECKPOINT_DIR"]
mark = os.path.join(folder, "step")
start = int(open(mark).read()) if os.path.exists(mark) else 0
writer = SummaryWriter()
writer.add_text("note", "some text")
for step in range(start + 1, 31):
    writer.add_scalar("train/loss", step / 4, step)
    if step == 10:
        open(mark, "w").write("10")
    if step == 14 and start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
"""


def test_tensorboard_program_is_live_and_goes_on_after_a_kill(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TENSORBOARD_PROGRAM)
    job = client.submit({"name": "tracked", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_until(lambda: client.metrics(job.id).series, 60, "the first point")
    assert client.job(job.id).status == "running"
    wait_for_status(client, job.id, "succeeded")
    (curve,) = client.metrics(job.id).series
    assert (curve.key, curve.steps) == ("train/loss", list(range(1, 31)))
    assert curve.values == [step / 4 for step in range(1, 31)]
    assert [artifact.path for artifact in client.artifacts(job.id)] == ["tensorboard/note/0.txt"]
