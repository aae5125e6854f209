"""What real clients send, replayed: repeated, split and reordered requests leave what the client logged."""

import gzip
import io
import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.tracker_clients import Clients, lines_of, run_program
from tests.support.tracker_spool import points
from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.trackers import wandb
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import API, MlflowApi
from worker.trackers.tracker_requests import TrackerRequest
from worker.trackers.variables import tracker_variables
from worker.trackers.wandb import WandbApi
from worker.trackers.wandb_file import RunFile
from worker.trackers.wandb_remainder import NotedFiles

pytestmark = pytest.mark.cpu_seconds(30)

MLFLOW = """
import time, mlflow
with mlflow.start_run(run_name="first"):
    for fold in range(3):
        for step in range(4):
            mlflow.log_metrics({"loss": fold * 10 + step, "acc": fold - step}, step=step)
    for value in range(4):
        mlflow.log_metric("counted", value)
        time.sleep(0.002)
    with mlflow.start_run(run_name="inner", nested=True):
        for step in range(3):
            mlflow.log_metric("loss", float("nan") if step == 1 else step, step=step * 5)
"""
WANDB = """
import time, wandb
run = wandb.init(config={"lr": 0.1})
run.define_metric("early", step_metric="epoch")
for fold in range(3):
    for epoch in range(4):
        value = fold * 10 + epoch
        run.log({"early": value, "late": value, "counted": value, "epoch": epoch, "batch": epoch * 100})
    time.sleep(1.1)
run.define_metric("late", step_metric="batch")
run.summary["best"] = 0.5
run.finish()
"""
LAST = [20.0 + epoch for epoch in range(4)]
"""The values of the last fold."""
EXPECTED = {
    "early": dict(enumerate(LAST)),
    "late": {100 * epoch: value for epoch, value in enumerate(LAST)},
    "counted": {fold * 4 + epoch: fold * 10 + epoch for fold in range(3) for epoch in range(4)},
    "epoch": {epoch: epoch for epoch in range(4)},
    "batch": {100 * epoch: 100 * epoch for epoch in range(4)},
    "best": {300: 0.5},
}
LINES = "wandb-history.jsonl"
Sent = tuple[TrackerRequest, dict[str, Any]]
"""A request and the object in its body."""
Handle = Callable[[TrackerRequest], Any]
GENERATED = settings(database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


class Recorder:
    """Passes the requests of a client on and keeps them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.sent: list[Sent] = []

    def record(self, request: TrackerRequest) -> Any:
        content = request.body.read(request.length)
        text = gzip.decompress(content) if request.encoding == "gzip" else content
        self.sent.append((request, json.loads(text) if text[:1] == b"{" else {}))
        return self._handle(replace(request, body=io.BytesIO(content)))

    def run(self, text: str, folder: Path, clients: Clients, address: list[str]) -> None:
        listener = TrackerListener(self.record, lambda: None)
        listener.start()
        address[:] = [listener.url, listener.secret]
        base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
        try:
            run_program(text, folder, tracker_variables(base, 1), clients)
        finally:
            listener.close()


def replay(handle: Handle, sent: Sent) -> Any:
    request, document = sent
    content = json.dumps(document).encode()
    return handle(replace(request, body=io.BytesIO(content), length=len(content), encoding=""))


def new_layout(folder: Path) -> AttemptLayout:
    attempt = RunLayout(folder / "job").attempt("1-a")
    attempt.root.mkdir(parents=True)
    return attempt


def stored_curves(layout: AttemptLayout) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {}
    for name, step, value in points(layout):
        curves.setdefault(name, {})[step] = value
    return curves


def deliveries(requests: Iterable[Sent], random_: random.Random) -> list[Sent]:
    """Return all requests in any order, some of them twice."""
    order = [one for one in requests for _ in range(random_.choice((1, 1, 2)))]
    random_.shuffle(order)
    return order


def halves(items: list[Any], random_: random.Random) -> list[tuple[int, list[Any]]]:
    """Return the parts into which a list is divided, with their positions."""
    at = random_.randrange(len(items) + 1)
    return [(first, part) for first, part in ((0, items[:at]), (at, items[at:])) if part]


def clients_of(package: str) -> list[Any]:
    """Return the clients of a package, each with the number of deliveries of its requests."""
    further = [pytest.param("installed", marks=pytest.mark.heavy), pytest.param("older", marks=pytest.mark.heavy)]
    many = [pytest.param(*one.values, 40, marks=one.marks) for one in (*further, *lines_of(package))]
    return [pytest.param("installed", 12), *many]


def mlflow_api(layout: AttemptLayout) -> MlflowApi:
    return MlflowApi(Journal(layout, 0), ArtifactFolder(layout.root / "mlflow"))


@pytest.mark.parametrize(("clients", "examples"), clients_of("mlflow-skinny"))
def test_any_delivery_of_requests_of_mlflow_stores_the_same(tmp_path: Path, clients: Clients, examples: int) -> None:
    recorder = Recorder(mlflow_api(new_layout(tmp_path)).handle)
    recorder.run(MLFLOW, tmp_path, clients, [])
    created = [one for one in recorder.sent if one[0].path == f"{API}runs/create"]
    logged = [one for one in recorder.sent if one[0].path.endswith(("log-metric", "log-batch"))]
    assert (len(created), len(logged)) == (2, 19)
    ids = list(dict.fromkeys(document["run_id"] for _, document in logged))

    @settings(GENERATED, max_examples=examples)
    @given(st.randoms(use_true_random=False))
    def check(random_: random.Random) -> None:
        with TemporaryDirectory(dir=tmp_path) as folder:
            layout = new_layout(Path(folder))
            api = mlflow_api(layout)
            handle = api.handle
            new = dict(zip(ids, (replay(handle, one)["run"]["info"]["run_id"] for one in created), strict=True))
            requests: list[Sent] = []
            for request, document in logged:
                body = document | {"run_id": new[document["run_id"]]}
                parts = halves(body["metrics"], random_) if "metrics" in body else []
                requests += [(request, body | {"metrics": part}) for _, part in parts] or [(request, body)]
            for one in deliveries(requests, random_):
                replay(handle, one)
            for running in (1, 2, 2):
                api.end_runs(running)
            curves = stored_curves(layout)
            assert curves.pop("counted") == {step: float(step) for step in range(4)}
            assert curves.pop("inner/loss") == pytest.approx({0: 0.0, 5: math.nan, 10: 2.0}, nan_ok=True)
            assert curves == {"loss": dict(enumerate(LAST)), "acc": {step: 2.0 - step for step in range(4)}}
            read = replace(logged[0][0], method="GET", path=f"{API}runs/get", query={"run_id": new[ids[0]]})
            metrics = replay(handle, (read, {}))["run"]["data"]["metrics"]
            assert {one["key"]: one["value"] for one in metrics} == {"loss": 23.0, "acc": -1.0, "counted": 3.0}

    check()


def wandb_api(layout: AttemptLayout, address: list[str]) -> WandbApi:
    artifacts = ArtifactFolder(layout.root / "wandb")
    return WandbApi(Journal(layout, 0), artifacts, lambda: (address[0], address[1]), NotedFiles(layout, 0))


def divided(sent: Sent, random_: random.Random) -> list[Sent]:
    """Return requests with the lines of one request of the file stream."""
    request, document = sent
    files = document.get("files") or {}
    lines = files.get(LINES) or {"offset": 0, "content": []}
    parts = halves(lines["content"], random_)
    chunks = [{"offset": lines["offset"] + first, "content": part} for first, part in parts]
    return [(request, {"files": {LINES: chunk}}) for chunk in chunks]


def without_lines(sent: Sent) -> Sent:
    request, document = sent
    return request, document | {"files": {k: one for k, one in (document.get("files") or {}).items() if k != LINES}}


@pytest.mark.parametrize(("clients", "examples"), clients_of("wandb"))
def test_any_delivery_of_requests_of_wandb_stores_the_same(
    tmp_path: Path, clients: Clients, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """The client's file is there from the beginning, grows by any number of bytes, and may be absent."""
    address: list[str] = []
    recorder = Recorder(wandb_api(new_layout(tmp_path), address).handle)
    recorder.run(WANDB, tmp_path, clients, address)
    (content,) = (path.read_bytes() for path in tmp_path.rglob("run-2*/run-*.wandb"))
    described = [one for one in recorder.sent if "UpsertBucket" in str(one[1].get("query"))]
    streamed = [one for one in recorder.sent if one[0].path.endswith("/file_stream")]

    @settings(GENERATED, max_examples=examples)
    @given(st.randoms(use_true_random=False))
    def check(random_: random.Random) -> None:
        with TemporaryDirectory(dir=tmp_path) as folder:
            path, size = Path(folder) / "run.wandb", 0
            path.touch()
            files = [RunFile(str(path), str(path))] if random_.randrange(3) else []
            monkeypatch.setattr(wandb, "find_run_file", lambda *_: files.pop() if files else None)
            layout = new_layout(Path(folder))
            handle = wandb_api(layout, address).handle
            parts = [part for one in streamed for part in divided(one, random_)]
            for one in deliveries([*described, *parts], random_):
                size += random_.choice((0, 0, random_.randrange(len(content))))
                path.write_bytes(content[:size])
                replay(handle, one)
            path.write_bytes(content)
            for one in streamed:  # Nothing in a summary says which one is newer.
                replay(handle, without_lines(one))
            assert stored_curves(layout) == EXPECTED

    check()
