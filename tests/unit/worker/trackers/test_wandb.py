"""The real W&B client reports to the listener, unchanged; and what other requests get."""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.tracker_clients import CLIENTS, CLIENTS_OF_DETAILS, Clients, lines_of, run_program, version_of
from tests.support.tracker_spool import bodies, events, media, parameters, points, tags
from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.wire.reports import MetricsBatch, ParametersReport
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.journal import Journal
from worker.trackers.listener import TrackerListener
from worker.trackers.tracker_requests import Reporter
from worker.trackers.variables import tracker_token, tracker_variables
from worker.trackers.wandb import WandbApi
from worker.trackers.wandb_remainder import NotedFiles

pytestmark = pytest.mark.cpu_seconds(12)

PROGRAM = """
import pathlib, wandb
config = {"lr": 3e-4, "model": {"depth": 2}}
run = wandb.init(project="digits", config=config, tags=["small"], notes="a note", group="sweep")
wandb.config.update({"extra": True})
for step in range(3):
    wandb.log({"loss": 1.0 / (step + 1), "nested": {"a": step}, "not a number": "x"}, step=step * 10)
wandb.log({"nan": float("nan"), "page": wandb.Html("<b>a</b>")})
wandb.log({"weights": wandb.Histogram([1, 2, 3], num_bins=2)})
for row in range(2):
    wandb.log({"table": wandb.Table(columns=["a"], data=[[row]])})
pathlib.Path("weights.bin").write_text("weights")
for version in range(2):
    artifact = wandb.Artifact("model", "model", metadata={"version": version})
    artifact.add_file("weights.bin")
    assert run.log_artifact(artifact).wait().version == f"v{version}"
wandb.summary["best"] = 0.25
for wait in (300, 300, 0.0001, 0.0001):
    run.alert(f"wait {wait}", "is low", level="WARN", wait_duration=wait)
with wandb.init(project="digits", name="inner", reinit="create_new") as inner:
    inner.log({"loss": 5.0})
wandb.finish()
"""
TOO_LARGE = """
import pathlib, wandb
run = wandb.init()
for name, size in ("large", 100_001), ("small", 1000):
    pathlib.Path(f"{name}.bin").write_bytes(b"x" * size)
    artifact = wandb.Artifact(name, "model")
    artifact.add_file(f"{name}.bin")
    run.log_artifact(artifact).wait()
pathlib.Path("saved.bin").write_bytes(b"x" * 100_001)
run.save("saved.bin")
run.log({"after": 1.0}, step=1)
run.finish()
"""
DEFINED = """
import wandb
run = wandb.init()
run.define_metric("{step}")
run.define_metric("*", step_metric="{step}")
run.define_metric("own", summary="min")
run.define_metric("gone", step_metric="{step}")
run.define_metric("gone", overwrite=True)
for step in (0, 500, 1000):
    run.log({{"train/loss": 1.0, "own": 1.0, "gone": 1.0, "{step}": step}})
    run.log({{"eval/loss": 2.0, "{step}": step}})
run.finish()
"""
RESUMED = """
import pathlib, time, wandb
run = wandb.init({arguments})
for value in range(3):
    run.log({{"loss": value}})
if not pathlib.Path("job/checkpoints").exists():
    time.sleep(0.1)
    pathlib.Path("job/checkpoints").mkdir()
    pathlib.Path("job/checkpoints/a").touch()
    time.sleep(0.1)
for value in range(3, 6):
    run.log({{"loss": value}})
run.finish()
"""
PHASES = """
import os, wandb
run = wandb.init(id="one", config={"lr": 0.1, "deep": {"a": 1}}, tags=["small"])
for value in range(10):
    run.log({"loss": value, "bad": float("nan")})
run.summary["best"] = 0.5
run.finish()
for phase in (1, 2):
    run = wandb.init(id="one", resume="must", config={"phase": phase})
    print("PHASE", run.starting_step, run.resumed, sorted(dict(run.config).items()), run.tags, run.summary["best"])
    for value in range(2):
        run.log({"loss": phase * 100 + value})
    run.finish()
"""
MEDIA = """
import numpy, wandb
run = wandb.init()
images = [wandb.Image(numpy.full((4, 4, 3), shade, dtype="uint8"), caption=str(shade)) for shade in range(3)]
run.log({"examples": images, "pages": [wandb.Html("<b>a</b>"), wandb.Html("<b>b</b>")], "loss": 1.0}, step=150)
run.finish()
"""
READS = """
import json, pathlib, wandb
run = wandb.init(project="digits", config={"lr": 0.1}, tags=["small"])
folder = pathlib.Path("sub")
folder.mkdir(exist_ok=True)
(folder / "a b.txt").write_text("text")
for version in range(2):
    artifact = wandb.Artifact("model", "model", metadata={"version": version})
    artifact.add_dir("sub", "sub")
    run.log_artifact(artifact, aliases=[] if version else ["best"]).wait()
api = wandb.Api()
best, latest = run.use_artifact("model:best"), run.use_artifact("model:latest")
own = api.run(run.path)
print("READ", json.dumps({
    "versions": [best.version, latest.version],
    "metadata": [best.metadata, latest.metadata],
    "aliases": sorted(api.artifact("digits/model:v0").aliases),
    "files": {path.name: path.read_text() for path in pathlib.Path(latest.download("copy")).rglob("*.txt")},
    "run": [own.name, own.config, own.tags],
}))
for name in ("model:v9", "nothing:latest"):
    try:
        run.use_artifact(name)
    except Exception as error:
        assert "not found" in str(error), error
    else:
        raise AssertionError(name)
run.finish()
"""
STREAM = "/files/a/b/run/file_stream"
JOB_PAGE = "http://trainyard.example:8470/jobs/job_1"


@pytest.fixture
def address() -> list[str]:
    return []


def make_api(layout: AttemptLayout, address: list[str]) -> WandbApi:
    artifacts = ArtifactFolder(RunLayout(layout.root.parent.parent).artifacts / "wandb", limit=100_000)
    return WandbApi(Journal(layout, 0), artifacts, lambda: (address[0], address[1]), NotedFiles(layout, 0))


@pytest.fixture
def api(layout: AttemptLayout, address: list[str]) -> WandbApi:
    return make_api(layout, address)


@contextmanager
def listening(api: WandbApi, address: list[str]) -> Iterator[TrackerListener]:
    made = TrackerListener(api.handle, lambda: None)
    address[:] = [made.url, made.secret]
    made.start()
    yield made
    made.close()


@pytest.fixture
def listener(api: WandbApi, address: list[str]) -> Iterator[TrackerListener]:
    with listening(api, address) as made:
        yield made


@pytest.fixture
def call(listener: TrackerListener) -> Callable[..., httpx.Response]:
    """Return a function that sends a request as a client of execution 1."""

    def send(path: str, body: object, **headers: str) -> httpx.Response:
        headers["Authorization"] = f"Bearer {tracker_token(listener.secret, Reporter(1, 0))}"
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(listener.url + path, headers=headers, content=content, trust_env=False)

    return send


def run(listener: TrackerListener, folder: Path, text: str, clients: Clients, execution: int = 1) -> str:
    base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
    return run_program(text, folder, tracker_variables(base, execution, JOB_PAGE), clients)


def upsert(name: str = "run", **variables: Any) -> dict[str, Any]:
    return {"query": "mutation UpsertBucket($name: String) {}", "variables": {"name": name, **variables}}


def history(*lines: dict[str, Any], offset: int = 0, **more: Any) -> dict[str, Any]:
    texts = [json.dumps(line) for line in lines]
    return {"files": {"wandb-history.jsonl": {"offset": offset, "content": texts}}, **more}


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_loop_over_folds_ends_with_the_last_fold(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, epochs: int
) -> None:
    program = f"""
import wandb
run = wandb.init()
run.define_metric("loss", step_metric="epoch")
for fold in range(3):
    for epoch in range({epochs}):
        run.log({{"loss": fold * 10 + epoch, "epoch": epoch}})
run.finish()
"""
    run(listener, tmp_path, program, "installed")
    logged = [(step, value) for name, step, value in points(layout) if name == "loss"]
    assert logged == [(epoch, fold * 10.0 + epoch) for fold in range(3) for epoch in range(epochs)]


@pytest.mark.parametrize("clients", [*CLIENTS, *lines_of("wandb")])
def test_program_reports_unchanged(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    # 0.19.0 has one run at a time.
    text = PROGRAM.replace('reinit="create_new"', "reinit=True") if clients == "wandb==0.19.0" else PROGRAM
    output = run(listener, tmp_path, text, clients)
    assert f"version {version_of(clients, 'wandb')}" in output
    assert "Failed to export" not in output
    assert f"View run at {JOB_PAGE}/wandb/" in output
    links = re.findall(r"https?://\S+/runs/\S+", output)
    assert len(links) > 1
    assert all(link.startswith(f"{JOB_PAGE}/wandb/") for link in links)
    assert f"{listener.url}/" not in output
    stored = points(layout)
    assert [(step, value) for key, step, value in stored if key == "loss"] == [(0, 1.0), (10, 0.5), (20, 1 / 3)]
    assert ("nested.a", 20, 2.0) in stored
    assert any(key == "nan" and value != value for key, _, value in stored)
    assert [value for key, _, value in stored if key == "best"] == [0.25]
    assert ("inner/loss", 0, 5.0) in stored
    assert parameters(layout) == {"lr": 3e-4, "model.depth": 2, "extra": True}
    names = {"project": "digits", "inner/project": "digits", "inner/run": "inner"}
    assert tags(layout) == {"small": "true", "group": "sweep", **names}
    (weights,) = [item for item in media(layout) if item.key == "weights"]
    assert weights.histogram is not None
    assert (weights.step, weights.histogram.bins, weights.histogram.values) == (21, (1, 2, 3), (1, 2))
    assert [(item.key, item.step, item.type) for item in media(layout) if item.key != "weights"] == [
        ("page", 20, "html"),
        ("table", 22, "table"),
        ("table", 23, "table"),
    ]
    assert "a note" in [body.notes for body in bodies(layout) if isinstance(body, ParametersReport)]
    files = {path.name.partition("_")[0] for path in (tmp_path / "job" / "artifacts" / "wandb").rglob("media/*/*")}
    assert files == {"page", "table"}
    models = (tmp_path / "job" / "artifacts" / "wandb" / "artifacts").glob("model-v*/weights.bin")
    assert [(path.parent.name, path.read_text()) for path in sorted(models)] == [
        ("model-v0", "weights"),
        ("model-v1", "weights"),
    ]
    stated = [(event.type, event.level, event.data) for event in events(layout)]
    alerts = [("alert", "warning", {"title": f"wait {wait}", "text": "is low"}) for wait in (300, 0.0001, 0.0001)]
    assert [one for one in stated if one[0] == "alert"] == alerts
    assert [one for one in stated if one[0] != "alert"] == [("report_adjusted", "warning", {"kind": "not_a_number"})]


@pytest.mark.parametrize("clients", [*CLIENTS, *lines_of("wandb")])
def test_program_reads_its_artifacts_and_its_run(
    layout: AttemptLayout, address: list[str], tmp_path: Path, clients: Clients
) -> None:
    def read(execution: int) -> Any:
        """Return what the program reads in an execution that has a launcher of its own."""
        with listening(make_api(layout, address), address) as listener:
            output = run(listener, tmp_path, READS, clients, execution)
        return json.loads(next(line for line in output.splitlines() if line.startswith("READ "))[5:])

    first = read(1)
    with (tmp_path / "job" / "artifacts" / "wandb" / "artifacts" / "index.jsonl").open("a") as index:
        index.write('{"artifact_id": "QQ==", "coll{}\n')  # as a killed launcher leaves it
    second = read(2)
    metadata = [{"version": 0}, {"version": 1}]
    for result, versions in ((first, ["v0", "v1"]), (second, ["v2", "v3"])):
        assert (result["versions"], result["metadata"]) == (versions, metadata)
        assert result["files"] == {"a b.txt": "text"}
        assert result["run"][1:] == [{"lr": 0.1}, ["small"]]
    assert (first["aliases"], second["aliases"]) == (["best"], [])
    assert events(layout) == []


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_artifact_without_room_is_left_out_and_stated_once(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    run(listener, tmp_path, TOO_LARGE, clients)
    stored = {path.name for path in (tmp_path / "job" / "artifacts").rglob("*") if path.is_file()}
    assert "small.bin" in stored
    assert not {"large.bin", "saved.bin"} & stored
    assert points(layout) == [("after", 1, 1.0)]
    assert [event.data for event in events(layout)] == [{"kind": "artifacts"}]


@pytest.mark.parametrize("step", ["train/global_step", "batch"])
@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_defined_step_metric_gives_the_steps(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, step: str, clients: Clients
) -> None:
    """A pattern applies to no metric with a definition of its own."""
    run(listener, tmp_path, DEFINED.format(step=step), clients)
    steps = {key: sorted(at for name, at, _ in points(layout) if name == key) for key, _, _ in points(layout)}
    defined = [0, 500, 1000]
    assert steps == {"train/loss": defined, "eval/loss": defined, "own": [0, 2, 4], "gone": [0, 2, 4]} | {
        step: sorted([*defined, *defined])
    }


@pytest.mark.parametrize(
    ("clients", "arguments"),
    [
        ("installed", ""),
        ("installed", "id='same', resume='allow'"),
        pytest.param("older", "id='same', resume='auto'", marks=pytest.mark.heavy),
    ],
)
def test_resumed_program_continues_after_its_checkpoint(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients, arguments: str
) -> None:
    text = RESUMED.format(arguments=arguments)
    run(listener, tmp_path, text, clients)
    output = run(listener, tmp_path, text, clients, execution=2)
    assert [step for _, step, _ in points(layout, 1)] == [0, 1, 2, 3, 4, 5]
    assert [step for _, step, _ in points(layout, 2)] == [3, 4, 5, 6, 7, 8]
    assert ("Resuming run same" in output) == bool(arguments)


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_run_that_is_continued_in_one_execution_keeps_its_lines(
    listener: TrackerListener,
    api: WandbApi,
    address: list[str],
    layout: AttemptLayout,
    tmp_path: Path,
    clients: Clients,
) -> None:
    output = run(listener, tmp_path, PHASES, clients)
    config = "[('deep', {{'a': 1}}), ('lr', 0.1), ('phase', {})]".format
    read = [line for line in output.splitlines() if line.startswith("PHASE")]
    assert read == [f"PHASE {at} True {config(phase)} ('small',) 0.5" for at, phase in ((10, 1), (12, 2))]
    losses = [*range(10), 100, 101, 200, 201]
    assert [(step, value) for name, step, value in points(layout) if name == "loss"] == list(enumerate(losses))
    assert [(step, value) for name, step, value in points(layout) if name == "best"] == [(9, 0.5)]
    run(listener, tmp_path, PHASES.partition("run.finish")[0].replace("lr", "ls"), clients, execution=2)
    resumed = "import wandb\nfor phase in (5, 6)" + PHASES.rpartition("for phase in (1, 2)")[2]
    read = "PHASE 0 True [('deep', {'a': 1}), ('ls', 0.1), ('phase', 5)] ('small',) 0.5"
    assert read in run(listener, tmp_path, resumed, clients, execution=3)
    later = RunLayout(layout.root.parent.parent).attempt("2-b")
    later.root.mkdir()
    api.end_runs(4)
    with listening(make_api(later, address), address) as other:
        assert read.replace("5)", "6)") in run(other, tmp_path, resumed.replace("5, 6", "6, 7"), clients, execution=4)
    for attempt, execution in ((layout, 3), (later, 4)):
        assert {name for name, _, _ in points(attempt, execution)} == {"loss", "best"}


def test_late_definition_gives_earlier_points_their_steps(
    call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    """A point without the step metric keeps the client's step, as do metrics that the definition does not name."""
    call("/graphql", upsert())
    lines = {"_step": 0, "loss": 1.0, "batch": 40}, {"_step": 1, "loss": 2.0, "other": 5.0}
    call(STREAM, history(*lines))
    assert points(layout) == [("loss", 0, 1.0), ("batch", 0, 40.0), ("loss", 1, 2.0), ("other", 1, 5.0)]
    defined = {"_wandb": {"value": {"m": [{"1": "batch"}, {"1": "loss", "5": 1}]}}}
    for _ in range(2):
        call("/graphql", upsert(config=json.dumps(defined)))
    call(STREAM, history({"_step": 2, "loss": 3.0, "batch": 80}, offset=2))
    expected = [("loss", 40, 1.0), ("batch", 40, 40.0), ("loss", 1, 2.0), ("other", 1, 5.0)]
    assert sorted(points(layout)) == sorted([*expected, ("loss", 80, 3.0), ("batch", 80, 80.0)])
    assert len([body for body in bodies(layout) if isinstance(body, MetricsBatch) and body.restarts]) == 1


def test_common_step_metric_counts_until_others_are_defined(
    call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    call(STREAM, history({"_step": 0, "loss": 1.0, "train/global_step": 40}))
    assert ("loss", 40, 1.0) in points(layout)
    call("/graphql", upsert(config=json.dumps({"_wandb": {"value": {"m": [{"1": "a"}, {"1": "b", "5": 1}]}}})))
    assert ("loss", 0, 1.0) in points(layout)


def test_repeated_lines_add_no_points(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    call("/graphql", upsert())
    lines = [{"_step": step, "loss": float(step)} for step in range(1, 5)]
    call(STREAM, history(*lines[:2]))
    call(STREAM, history(*lines[:3]))
    call(STREAM, history(*lines[2:], offset=2))
    assert points(layout) == [("loss", step, float(step)) for step in range(1, 5)]


def test_lines_whose_step_cannot_be_stored_are_left_out(
    api: WandbApi, call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    """The step is W&B's own, or that of the step metric."""
    defined = {"_wandb": {"value": {"m": [{"1": "epoch"}, {"1": "acc", "5": 1}]}}}
    call("/graphql", upsert(config=json.dumps(defined)))
    steps = [2**53 + 1, 2**60, 1.5, "9", True, -1, 3]
    call(STREAM, history(*({"_step": step, "loss": 1.0 + number} for number, step in enumerate(steps))))
    call(STREAM, history({"_step": 4, "acc": 1.0, "epoch": -5}, {"_step": 5, "acc": 2.0, "epoch": 2.5}, offset=7))
    image = {"_type": "image-file", "path": "a.png"}
    call(STREAM, history({"_step": 2**60, "image": image}, {"_step": 6, "image": image}, offset=9))
    call("/graphql", upsert(name="end", summary="{}"))
    api.end_runs(2)
    api._journal.close()
    stored = points(layout)
    assert [point for point in stored if point[0] == "loss"] == [("loss", 3, 7.0)]
    assert [point for point in stored if point[0] == "acc"] == [("acc", 5, 2.0)]
    assert [item.step for item in media(layout)] == [6]
    *stated, left_out = events(layout)
    counts = [{"metric": name, "count": count} for name, count in (("loss", 6), ("acc", 1), ("epoch", 1))]
    assert left_out.data == {"kind": "step", "metrics": 3, "left_out": counts}
    assert [event.data["kind"] for event in stated] == ["media_step"]


def test_compressed_body_is_read(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    body = gzip.compress(json.dumps(history({"_step": 1, "loss": 2.0})).encode())
    assert call(STREAM, body, **{"Content-Encoding": "gzip"}).status_code == 200
    assert points(layout) == [("loss", 1, 2.0)]
    bomb = gzip.compress(b" " * 80 * 1024 * 1024)
    assert call(STREAM, bomb, **{"Content-Encoding": "gzip"}).status_code == 400


def test_summary_of_logged_metrics_adds_no_points(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    body = history({"_step": 7, "loss": 2.0}, complete=True)
    summary = {"_step": 7, "loss": {"min": 1.0}, "best": 3.0, "image": {"_type": "image-file"}}
    body["files"]["wandb-summary.json"] = {"offset": 0, "content": [json.dumps(summary)]}
    call(STREAM, body)
    assert points(layout) == [("loss", 7, 2.0), ("best", 7, 3.0)]


def test_media_are_reported_by_step_and_other_objects_stated(
    call: Callable[..., httpx.Response], layout: AttemptLayout, tmp_path: Path
) -> None:
    call("/graphql", upsert())
    histogram = {"_type": "histogram", "bins": [0, 1, 2], "values": [3, 4]}
    lines = [{"_step": step, "loss": 1.0, "../w/0.grad": histogram} for step in (1, 2)]
    odd = {"_step": 3, "nested": {"odd": {"_type": "odd"}, "image": {"_type": "image-file", "path": "a.png"}}}
    call(STREAM, history(*lines, odd, odd))
    assert [(item.key, item.step, item.path) for item in media(layout)] == [
        ("../w/0.grad", 1, None),
        ("../w/0.grad", 2, None),
        ("nested.image", 3, "wandb/run/a.png"),
    ]
    assert points(layout) == [("loss", 1, 1.0), ("loss", 2, 1.0)]
    (event,) = events(layout)
    assert "such values, as 'nested.odd', are left out" in event.message


def test_names_of_runs_that_meet_stay_distinct(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    image = {"_type": "image-file", "path": "a.png"}
    for run_id, name, pair in (("run", "outer", ("inner/loss", "inner/image")), ("other", "inner", ("loss", "image"))):
        config = json.dumps({pair[0]: {"value": run_id}})
        call("/graphql", upsert(run_id, displayName=name, config=config))
        call(STREAM.replace("/run/", f"/{run_id}/"), history({"_step": 1, pair[0]: len(run_id), pair[1]: image}))
    (first, _, three), (second, _, five) = points(layout)
    assert (first, three, second.startswith("inner/loss~"), five) == ("inner/loss", 3, True, 5)
    values = {name: value for name, value in parameters(layout).items() if "loss" in name}
    assert values == {first: "run", second: "other"}
    keys = [item.key for item in media(layout)]
    assert (keys[0], keys[1].startswith("inner/image~")) == ("inner/image", True)


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_lists_of_media_are_files(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    run(listener, tmp_path, MEDIA, clients)
    artifacts = tmp_path / "job" / "artifacts"
    stored = list((artifacts / "wandb").rglob("media/*/*"))
    assert sorted(path.suffix for path in stored) == [".html"] * 2 + [".png"] * 3
    assert points(layout) == [("loss", 150, 1.0)]
    assert events(layout) == []
    pages = [("pages", 150, position, None) for position in range(2)]
    examples = [("examples", 150, shade, str(shade)) for shade in range(3)]
    items = sorted(media(layout), key=lambda item: item.key)
    assert [(item.key, item.step, item.position, item.caption) for item in items] == [*examples, *pages]
    assert {artifacts / str(item.path) for item in items} == set(stored)


def test_unknown_operation_is_stated_once(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    for _ in range(2):
        answer = call("/graphql", {"query": "query Unknown { a }"})
        assert "Unknown is not supported" in answer.json()["errors"][0]["message"]
    assert [event.data for event in events(layout)] == [{"kind": "wandb_Unknown"}]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/graphql", b"{", 400),
        ("/graphql", b"[]", 400),
        ("/graphql", upsert("../a"), 400),
        ("/graphql", upsert(config="{"), 200),
        ("/graphql", upsert(config='{"_wandb": {"value": {"m": [{"1": 2, "5": 99}, 3, {"5": -1}]}}}'), 200),
        ("/files/a/b/..%2f/file_stream", {}, 400),
        ("/files/a/b/run", {}, 404),
        (STREAM, {"files": []}, 200),
        (
            STREAM,
            {"files": {"wandb-history.jsonl": {"offset": "x", "content": ["{", 3, "[]"]}}},
            200,
        ),
        (STREAM, history({"_step": -1, "_timestamp": 1e300, "a": [1]}, {"_step": 1e400, "a": None}), 200),
    ],
)
def test_bad_requests_have_a_clear_answer(
    call: Callable[..., httpx.Response], layout: AttemptLayout, path: str, body: object, status: int
) -> None:
    answer = call(path, body)
    assert answer.status_code == status
    assert status == 200 or answer.json()["message"]
    assert not layout.tracker_spool(1, 0).exists() or points(layout) == []


def test_files_stay_in_the_folder_of_the_run(
    listener: TrackerListener, call: Callable[..., httpx.Response], tmp_path: Path
) -> None:
    request = {"query": "mutation CreateRunFiles {}", "variables": {"run": "run", "files": ["a b.txt", "../../../x"]}}
    made = call("/graphql", request).json()["data"]["createRunFiles"]
    files, (header,) = made["files"], made["uploadHeaders"]
    headers = dict([header.split(": ")])
    statuses = [
        httpx.put(file["uploadUrl"], content=b"1", headers=headers, trust_env=False).status_code for file in files
    ]
    assert statuses == [200, 400]
    assert [path.name for path in (tmp_path / "job" / "artifacts").rglob("*") if path.is_file()] == ["a b.txt"]


def test_variables_of_the_job_are_left_alone() -> None:
    base = {"TRAINYARD_TRACKER_URL": "http://127.0.0.1:1", "TRAINYARD_TRACKER_SECRET": "0" * 28}
    assert "WANDB_BASE_URL" in tracker_variables(base, 1)
    assert "WANDB_APP_URL" not in tracker_variables(base | {"WANDB_APP_URL": "http://pages"}, 1, JOB_PAGE)
    for name in ("WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"):
        assert not any(one.startswith("WANDB") for one in tracker_variables(base | {name: "x"}, 1))
