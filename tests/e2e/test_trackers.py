"""Programs that report through their tracker, unchanged, with the real service and its local backend."""

import re
from pathlib import Path

import pytest

from tests.support.live import wait_for_status
from tests.support.wait import wait_until
from trainyard.client import Client
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

MODEL = """
import torch


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(super().forward(x), labels)}


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.tensor([index / 64])
        return {"x": x, "labels": x * x}
"""
FRAMEWORKS = """
import lightning, torch, wandb
from accelerate import Accelerator
from lightning.pytorch.loggers import WandbLogger
from mine import Examples, Model
from transformers import Trainer, TrainingArguments


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        loss = self.model(**batch)["loss"]
        self.log("lightning_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


batches = torch.utils.data.DataLoader(Examples(), batch_size=4)
lightning.Trainer(
    max_steps=20, log_every_n_steps=5, logger=WandbLogger(), enable_checkpointing=False, enable_progress_bar=False
).fit(Module(), batches)
wandb.finish()

for tracker in ("mlflow", "wandb", "tensorboard"):
    arguments = TrainingArguments("out", max_steps=20, logging_steps=5, report_to=tracker)
    Trainer(Model(), arguments, train_dataset=Examples()).train()

accelerator = Accelerator(log_with="tensorboard", project_dir="logs")
accelerator.init_trackers("digits", config={"lr": 0.1})
for step in range(5, 25, 5):
    accelerator.log({"loss": 1 / step}, step=step)
accelerator.end_training()
"""
"""All frameworks in one program: their imports take most of the time."""
CURVES = {
    "lightning-wandb": ("lightning_loss", [4, 9, 14, 19]),
    "trainer-mlflow": ("loss", [5, 10, 15, 20]),
    "trainer-wandb": ("ID/train/loss", [5, 10, 15, 20]),
    "trainer-tensorboard": ("train/loss", [5, 10, 15, 20]),
    "accelerate-tensorboard": ("logs/digits/loss", [5, 10, 15, 20]),
}
"""Curve and steps by framework and tracker. Second runs have their id or folder before the name of the metric."""
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


def test_mlflow_program_is_live_and_replaces_points_after_a_resume(
    service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """The service is absent, too, while the program reports."""
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = {"name": "tracked", "task": "script", "argv": ["train.py"]}
    job = client.submit(spec, code=tmp_path)
    wait_until(lambda: (client.job(job.id).progress or 0) and client.metrics(job.id).series, 60, "the first point")
    assert client.job(job.id).status == "running"
    service.kill()
    service.start()
    service.client().close()
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


FOLDS_PROGRAM = """
import mlflow, wandb

run = wandb.init()
run.define_metric("wandb_loss", step_metric="epoch")
for fold in range(5):
    for step in range(10):
        mlflow.log_metric("mlflow_loss", fold * 10 + step, step=step)
        run.log({"wandb_loss": fold * 10 + step, "epoch": step})
run.finish()
"""


def test_loops_over_folds_end_with_the_values_of_the_last_fold(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FOLDS_PROGRAM)
    job = client.submit({"name": "folds", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_for_status(client, job.id, "succeeded")
    series = {one.key: dict(zip(one.steps, one.values, strict=True)) for one in client.metrics(job.id).series}
    last = {step: 40.0 + step for step in range(10)}
    assert (series["mlflow_loss"], series["wandb_loss"]) == (last, last)
    (event,) = [one for one in client.events(job.id) if one.type == "steps_repeated"]
    counts = {one["metric"]: one["count"] for one in event.data["repeats"]}
    assert (counts["mlflow_loss"], counts["wandb_loss"]) == (40, 40)


ODD_STEPS_PROGRAM = """
import mlflow, wandb
from torch.utils.tensorboard import SummaryWriter

run = wandb.init(id="one")
writer = SummaryWriter("logs")
for step in range(10):
    for tracker, value in (("tensorboard", step + 100), ("mlflow", step + 200), ("wandb", step)):
        if tracker == "tensorboard":
            writer.add_scalar("loss", value, step)
        elif tracker == "mlflow":
            mlflow.log_metric("loss", value, step=step)
        else:
            run.log({"loss": value})
writer.close()
run.finish()
with wandb.init(id="one", resume="must") as run:
    run.log({"loss": 10.0})
for step, value in ((0, 9.0), (0, 8.0), (100, 1.0), (200, 2.0), (-1, 3.0)):
    mlflow.log_metric("acc", value, step=step)
"""


def test_curves_have_given_steps_and_the_values_of_one_tracker(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ODD_STEPS_PROGRAM)
    job = client.submit({"name": "odd", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_for_status(client, job.id, "succeeded")
    series = {one.key: dict(zip(one.steps, one.values, strict=True)) for one in client.metrics(job.id).series}
    assert series == {"loss": {step: float(step) for step in range(11)}, "acc": {0: 8.0, 100: 1.0, 200: 2.0}}
    stated = {one.data["kind"]: one for one in client.events(job.id) if one.type == "worker.report_adjusted"}
    assert stated["step"].data["left_out"] == [{"metric": "acc", "count": 1}]
    assert stated["two_trackers"].data["left_out"] == [{"metric": "loss", "count": 20}]
    (repeated,) = [one for one in client.events(job.id) if one.type == "steps_repeated"]
    assert {"metric": "acc", "count": 1} in repeated.data["repeats"]


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


def test_frameworks_report_through_their_trackers(client: Client, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(FRAMEWORKS)
    job = client.submit({"name": "frameworks", "task": "script", "argv": ["train.py"]}, code=tmp_path).id
    wait_for_status(client, job, "succeeded")
    reported = {re.sub("^[a-z0-9]{8}/", "ID/", series.key): series.steps for series in client.metrics(job).series}
    for name, (curve, steps) in CURVES.items():
        assert reported.get(curve) == steps, (name, reported)


ODD_NAMES = ["λ", "μ", "acc@1", "acc#1", "a,b", "`q`", "loss (val)", "準確率", "😀", 'a"b', "a\\b", "50%"]
NAMED = {
    "mlflow": """
import mlflow
for number, name in enumerate(NAMES):
    mlflow.log_metric(name, number, step=1)
""",
    "wandb": """
import wandb
with wandb.init() as run:
    run.log({name: number for number, name in enumerate(NAMES)}, step=1)
""",
    "tensorboard": """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("logs") as writer:
    for number, name in enumerate(NAMES):
        writer.add_scalar(name, number, 1)
""",
}


@pytest.mark.parametrize("tracker", NAMED)
def test_curves_have_the_names_that_the_program_logged(client: Client, tmp_path: Path, tracker: str) -> None:
    (tmp_path / "train.py").write_text(f"NAMES = {ODD_NAMES!r}\n{NAMED[tracker]}")
    job = client.submit({"name": f"odd-{tracker}", "task": "script", "argv": ["train.py"]}, code=tmp_path)
    wait_for_status(client, job.id, "succeeded")
    expected = {name: [float(number)] for number, name in enumerate(ODD_NAMES)}
    assert {one.key: one.values for one in client.metrics(job.id).series} == expected
    for name, values in expected.items():
        assert [(one.key, one.values) for one in client.metrics(job.id, name).series] == [(name, values)]
