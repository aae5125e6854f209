"""Programs that report through their tracker, unchanged, with the real service and its local backend."""

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.live import attempt_of, run_of, wait_for_status
from tests.support.tracker_clients import CLIENTS_OF_DETAILS, Clients, import_folders, run_program, wandb_runs
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
    *events, text = [artifact.path for artifact in client.artifacts(job.id)]
    assert text == "tensorboard/note/0.txt"
    assert len(events) == 2, "one file of each attempt"
    assert all(re.fullmatch(r"output/runs/[^/]+/events\.out\.tfevents\.[^/]+", path) for path in events)


def test_frameworks_report_through_their_trackers(client: Client, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(FRAMEWORKS)
    job = client.submit({"name": "frameworks", "task": "script", "argv": ["train.py"]}, code=tmp_path).id
    wait_for_status(client, job, "succeeded")
    reported = {re.sub("^[a-z0-9]{8}/", "ID/", series.key): series.steps for series in client.metrics(job).series}
    for name, (curve, steps) in CURVES.items():
        assert reported.get(curve) == steps, (name, reported)


ODD_NAMES = ["λ", "μ", "acc@1", "acc#1", "a,b", "`q`", "loss (val)", "準確率", "😀", 'a"b', "a\\b", "50%"]
"""MLflow's own server refuses some of them."""
ALIKE_NAMES = ["\u00e9", "e\u0301", "\u00c5", "\u212b", "A\u030a", "\ufb01", "fi", "דיוק", "دقة", "\uff4c", "l"]
"""Accents as a part of a letter and beside it, other forms of a letter, and text from right to left."""
COMPARED = {
    "mlflow": """
import contextlib, inspect
import mlflow, mlflow.pytorch, torch

newer = "serialization_format" in inspect.signature(mlflow.pytorch.log_model).parameters
form = {"serialization_format": "pickle"} if newer else {}
for fold in range(5):
    with mlflow.start_run(run_name=f"fold{fold}"):
        for step in range(6):
            mlflow.log_metric("loss", fold * 10 + step, step=step * 2)
with mlflow.start_run(run_name="folds"):
    for fold in range(5):
        for step in range(6):
            mlflow.log_metrics({"loss": fold * 10 + step, "acc": fold - step}, step=step)
with mlflow.start_run(run_name="models"):
    for epoch in range(4):
        mlflow.log_metric("before", epoch / 2, step=epoch)
        mlflow.pytorch.log_model(torch.nn.Linear(1, 1), name=f"m{epoch}", pip_requirements=[], **form)
        mlflow.log_metric("after", epoch / 4, step=epoch)
with mlflow.start_run(run_name="names"):
    for number, name in enumerate(NAMES):
        with contextlib.suppress(mlflow.MlflowException):
            mlflow.log_metric(name, number, step=1)
""",
    "wandb": """
import time, wandb

for fold in range(5):
    with wandb.init(name=f"fold{fold}") as run:
        for step in range(6):
            run.log({"loss": fold * 10 + step}, step=step * 2)
with wandb.init(name="folds") as run:
    run.define_metric("early", step_metric="epoch")
    for fold in range(5):
        for epoch in range(6):
            value = fold * 10 + epoch
            run.log({"early": value, "late": value, "counted": value, "epoch": epoch, "batch": epoch * 100})
    time.sleep(2.5)  # The points are stored before the definition.
    run.define_metric("late", step_metric="batch")
with wandb.init(name="names") as run:
    run.log({name: number for number, name in enumerate(NAMES)}, step=1)
""",
    "tensorboard": """
from torch.utils.tensorboard import SummaryWriter

for fold in range(5):
    with SummaryWriter(f"logs/fold{fold}") as writer:
        for step in range(6):
            writer.add_scalar("loss", fold * 10 + step, step * 2)
with SummaryWriter("logs/names") as writer:
    for number, name in enumerate(NAMES):
        writer.add_scalar(name, number, 1)
""",
    "script": """
from trainyard.script import report

for fold in range(5):
    for step in range(6):
        report(step, {"loss": fold * 10 + step})
report(1, {name: number for number, name in enumerate(NAMES)})
""",
}
"""Loops over folds, models in a loop, axes that are defined before and after the points, and names."""
REPEATED = {
    "mlflow": {"folds/loss": 24, "folds/acc": 24},
    "wandb": {"folds/early": 24, "folds/late": 24, "folds/epoch": 24, "folds/batch": 24},
    "tensorboard": {},
    "script": {"train/loss": 24},
}
"""How many values of a step a later one replaces."""
Curves = dict[str, dict[int, float]]
"""The value of each step, by metric."""


def own_curves(tracker: str, code: Path, text: str, clients: Clients) -> tuple[Curves, dict[str, float]]:
    """Return the curves of the client's own files as its pages draw them, and the values that its tables show."""
    curves: Curves = {}
    latest: dict[str, float] = {}
    if tracker == "mlflow":
        run_program(text, code, {"MLFLOW_TRACKING_URI": "own", "MLFLOW_ALLOW_FILE_STORE": "true"}, clients)
        for run in (code / "own").glob("*/*/metrics"):
            (named,) = re.findall("^run_name: (.+)", (run.parent / "meta.yaml").read_text(), re.MULTILINE)
            for path in run.rglob("*"):
                lines = [line.split() for line in path.read_text().splitlines()]
                points = sorted((int(time), float(value), int(step)) for time, value, step, *_ in lines)
                name = stored_as(named, path.relative_to(run).as_posix())
                curves[name] = {step: value for _, value, step in points}
                latest[name] = curves[name][max(curves[name])]
    elif tracker == "wandb":
        for run in wandb_runs(code):
            # Here, an axis is drawn over itself.
            axes = run["axes"] | {axis: axis for axis in run["axes"].values()}
            for line in run["lines"]:
                for name in line.keys() - {"_step", "_runtime", "_timestamp"}:
                    curves.setdefault(stored_as(run["name"], name), {})[line[axes.get(name, "_step")]] = line[name]
            latest |= {stored_as(run["name"], name): value for name, value in run["summary"].items() if name[0] != "_"}
    elif tracker == "tensorboard":
        for folder in (code / "logs").iterdir():
            events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
            for name in events.Tags()["scalars"]:
                curves[stored_as(folder.name, name)] = {one.step: one.value for one in events.Scalars(name)}
    else:
        curves = {"train/loss": {step: 40.0 + step for step in range(6)}}
        curves |= {f"train/{name}": {1: number} for number, name in enumerate(ODD_NAMES + ALIKE_NAMES)}
    return curves, latest


def stored_as(run: str, name: str) -> str:
    return name if run == "fold0" else f"{run}/{name}"


@pytest.mark.parametrize("tracker", COMPARED)
@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_curves_are_those_of_the_client(
    client: Client, runs: Path, tmp_path: Path, tracker: str, clients: Clients
) -> None:
    text = f"import sys\nsys.path[:0] = sys.argv[1:]\nNAMES = {ODD_NAMES + ALIKE_NAMES!r}\n{COMPARED[tracker]}"
    (tmp_path / "train.py").write_text(text)
    spec = {"name": f"compared-{tracker}", "task": "script", "argv": ["train.py", *import_folders(clients)]}
    job = client.submit(spec, code=tmp_path).id
    wait_for_status(client, job, "succeeded")
    curves = {one.key: dict(zip(one.steps, one.values, strict=True)) for one in client.metrics(job).series}
    own, latest = own_curves(tracker, attempt_of(run_of(runs, job), 1).work, text, clients)
    logged = {stored_as("names", name): {1: number} for number, name in enumerate(ODD_NAMES + ALIKE_NAMES)}
    assert curves == own | (logged if tracker == "mlflow" else {})
    assert client.job(job).resource.metrics.items() >= latest.items()
    counted = [one.data["repeats"] for one in client.events(job) if one.type == "steps_repeated"]
    assert {one["metric"]: one["count"] for repeats in counted for one in repeats} == REPEATED[tracker]
    for name, curve in own.items():
        (read,) = client.metrics(job, name).series
        assert (read.key, dict(zip(read.steps, read.values, strict=True))) == (name, curve)
