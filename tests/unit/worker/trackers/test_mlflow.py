"""The real MLflow client reports to the listener, unchanged; and what other requests get."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.tracker_clients import CLIENTS, CLIENTS_OF_DETAILS, Clients, lines_of, run_program, version_of
from tests.support.tracker_spool import bodies, events, media, parameters, points, tags
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import EventsBatch, ParametersReport
from worker.trackers.journal import MAX_NAMES
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import API, ARTIFACTS
from worker.trackers.tracker_requests import Reporter
from worker.trackers.variables import tracker_token, tracker_variables

pytestmark = pytest.mark.cpu_seconds(12)

PROGRAM = """
import mlflow
print("client", mlflow.__version__)
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="first"):
    mlflow.log_params({"lr": 3e-4, "layers": 2, "model": "gpt", "amp": True})
    mlflow.set_tag("team", "nlp")
    for step in range(3):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
    mlflow.log_metrics({"acc": 0.5, "top 5 (%)": float("nan")}, step=2)
    mlflow.log_metric("counted", 1.0)
    mlflow.log_metric("counted", 2.0)
    mlflow.log_dict({"a": 1}, "sub/config.json")
    with mlflow.start_run(run_name="inner", nested=True):
        mlflow.log_metric("loss", 5.0, step=7)
"""
TOO_LARGE = """
import mlflow
with mlflow.start_run():
    for name in ("first", "second"):
        mlflow.log_text("x" * 100_001, name)
    mlflow.log_text("x" * 100, "fits")
    mlflow.log_metric("after", 1.0)
"""


IMAGES = """
import mlflow, numpy
with mlflow.start_run():
    for step in (0, 7):
        mlflow.log_image(numpy.zeros((4, 4, 3), "uint8"), key="first 1", step=step)
    mlflow.log_image(numpy.zeros((4, 4, 3), "uint8"), "plain.png")
"""


def run(listener: TrackerListener, folder: Path, text: str, clients: Clients, execution: int = 1) -> str:
    base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
    return run_program(text, folder, tracker_variables(base, execution), clients)


@pytest.mark.parametrize("clients", [*CLIENTS, *lines_of("mlflow-skinny")])
def test_program_reports_unchanged(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    output = run(listener, tmp_path, PROGRAM, clients)
    assert f"client {version_of(clients, 'mlflow-skinny')}" in output
    assert "View run" not in output
    stored = points(layout)
    assert [(step, value) for key, step, value in stored if key == "loss"] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]
    assert ("acc", 2, 0.5) in stored
    assert any(key == "top 5 (%)" and value != value for key, _, value in stored)
    assert [(step, value) for key, step, value in stored if key == "counted"] == [(0, 1.0), (1, 2.0)]
    assert ("inner/loss", 7, 5.0) in stored
    assert parameters(layout) == {"lr": 3e-4, "layers": 2, "model": "gpt", "amp": True}
    assert any(isinstance(body, ParametersReport) and body.tags == {"team": "nlp"} for body in bodies(layout))
    (artifact,) = (tmp_path / "job" / "artifacts" / "mlflow").rglob("config.json")
    assert json.loads(artifact.read_text()) == {"a": 1}
    assert events(layout) == []


def test_a_loop_over_folds_reports_the_steps_of_each_fold(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path
) -> None:
    program = """
import mlflow
for fold in range(3):
    for step in range(4):
        mlflow.log_metric("loss", 1.0 if step == 0 else fold * 10 + step, step=step)
"""
    run(listener, tmp_path, program, "installed")
    assert [step for _, step, _ in points(layout)] == [0, 1, 2, 3] * 3
    assert {step: value for _, step, value in points(layout)} == {0: 1.0, 1: 21.0, 2: 22.0, 3: 23.0}


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_images_are_reported_with_keys_and_steps(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    run(listener, tmp_path, IMAGES, clients)
    items = sorted(media(layout), key=lambda item: item.step)  # The client sends them from several threads.
    assert [(item.key, item.step, item.type) for item in items] == [
        ("first 1", 0, "image"),
        ("first 1", 7, "image"),
    ]
    assert all((tmp_path / "job" / "artifacts" / str(item.path)).is_file() for item in items)


def test_later_execution_continues_where_the_checkpoint_was_written(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path
) -> None:
    before = "import mlflow\nfor value in range(4): mlflow.log_metric('loss', value)\n"
    after = "for value in range(4, 6): mlflow.log_metric('loss', value)\n"
    save = "import pathlib, time; time.sleep(0.05); pathlib.Path('job/checkpoints').mkdir()\n"
    save += "pathlib.Path('job/checkpoints/a').touch(); time.sleep(0.05)\n"
    run(listener, tmp_path, before + save + after, "installed")
    run(listener, tmp_path, before, "installed", execution=2)
    assert [step for _, step, _ in points(layout, 1)] == [0, 1, 2, 3, 4, 5]
    assert [step for _, step, _ in points(layout, 2)] == [4, 5, 6, 7]
    assert bodies(layout, 2)[0].resumed_from_step == 3


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_artifact_without_room_is_left_out_and_stated_once(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    run(listener, tmp_path, TOO_LARGE, clients)
    assert [path.name for path in (tmp_path / "job" / "artifacts").rglob("*") if path.is_file()] == ["fits"]
    assert points(layout) == [("after", 0, 1.0)]
    assert [event.data for event in events(layout)] == [{"kind": "artifacts"}]


def test_unknown_call_is_stated_once(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    call("GET", "/api/3.0/mlflow/server-info")
    for number in range(2):
        answer = call("POST", f"{API}of-a-newer-client/{number}", json={})
        assert "is not supported by Trainyard" in answer.json()["message"]
    (event,) = events(layout)
    assert event.data == {"kind": "mlflow_route"}
    assert "of-a-newer-client/0" in event.message


def test_user_and_password_of_another_server_are_replaced(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path
) -> None:
    base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
    own = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "mine"}
    run_program("import mlflow; mlflow.log_metric('x', 1.5, step=3)", tmp_path, own | tracker_variables(base | own, 1))
    assert points(layout) == [("x", 3, 1.5)]


def test_runs_of_other_ranks_have_their_own_curves(
    listener: TrackerListener, call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    metric = {"run_id": "b", "key": "x", "value": 2.5, "timestamp": 1700000000000, "step": 3}
    call("POST", f"{API}runs/log-metric", tracker_token(listener.secret, Reporter(1, 2)), json=metric)
    call("POST", f"{API}runs/log-metric", json=metric | {"run_id": "a"})
    assert points(layout) == [("rank-2/x", 3, 2.5), ("x", 3, 2.5)]


def test_names_of_runs_that_meet_stay_distinct(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    created = [call("POST", f"{API}runs/create", json={"run_name": name}).json() for name in ("outer", "inner")]
    outer, inner = (one["run"]["info"]["run_id"] for one in created)
    for run_id, key in ((inner, "loss"), (outer, "inner/loss")):
        body = {"run_id": run_id, "metrics": [{"key": key, "value": len(key), "timestamp": 1, "step": 1}]}
        body |= {"params": [{"key": key, "value": str(len(key))}], "tags": [{"key": key, "value": str(len(key))}]}
        assert call("POST", f"{API}runs/log-batch", json=body).status_code == 200
    call("POST", f"{API}runs/delete-tag", json={"run_id": outer, "key": "inner/loss"})
    (first, _, four), (second, _, ten) = points(layout)
    assert (first, four, second.startswith("inner/loss~"), ten) == ("inner/loss", 4, True, 10)
    assert {name: value for name, value in parameters(layout).items() if "loss" in name} == {first: 4, second: 10}
    assert {name: value for name, value in tags(layout).items() if "loss" in name} == {first: "4", second: "10"}
    assert bodies(layout)[-1].removed_tags == (second,)


def test_names_beyond_the_limit_are_stated_once(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    for start in range(0, 10_000, 1000):
        metrics = [{"key": f"m{i}", "value": 1.0, "timestamp": 1, "step": 1} for i in range(start, start + 1000)]
        assert call("POST", f"{API}runs/log-batch", json={"run_id": "a", "metrics": metrics}).status_code == 200
    assert len({key for key, _, _ in points(layout)}) == MAX_NAMES
    (event,) = [event for body in bodies(layout) if isinstance(body, EventsBatch) for event in body.events]
    assert event.data == {"kind": "too_many_names"}


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", f"{API}runs/log-batch", b"{", 400),
        ("POST", f"{API}runs/log-batch", b"[1]", 400),
        ("POST", f"{API}runs/log-batch", b'{"run_id": "a", "metrics": [1]}', 400),
        ("POST", f"{API}runs/log-metric", b'{"run_id": "a", "key": 1}', 400),
        ("POST", f"{API}runs/log-metric", b'{"run_id": "a", "key": "x", "step": "y"}', 400),
        ("POST", f"{API}runs/log-metric", b'{"run_id": "../a", "key": "x"}', 400),
        ("POST", f"{API}unknown", b"", 404),
        ("GET", "/", b"", 404),
        ("PUT", f"{ARTIFACTS}..%2f..%2fx", b"1", 400),
        ("PUT", f"{ARTIFACTS}a/%2e%2e/x", b"1", 400),
    ],
)
def test_bad_requests_have_a_clear_answer(
    call: Callable[..., httpx.Response], layout: AttemptLayout, method: str, path: str, content: bytes, status: int
) -> None:
    answer = call(method, path, content=content)
    assert answer.status_code == status
    assert answer.json()["message"]
    assert not layout.spool.exists() or points(layout) == []


def test_values_that_are_no_numbers_are_stated_once(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    for value in ("abc", None, [1], "NaN"):
        metric = {"run_id": "a", "key": "x", "value": value, "timestamp": 1, "step": 3}
        assert call("POST", f"{API}runs/log-metric", json=metric).status_code == 200
    (event,) = [event for body in bodies(layout) if isinstance(body, EventsBatch) for event in body.events]
    assert (event.type, event.data) == ("report_adjusted", {"kind": "not_a_number"})
    assert event.sequence == 1_000_000
    assert [(key, step) for key, step, _ in points(layout)] == [("x", 3)]


def test_repeated_request_adds_no_point(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    metric = {"run_id": "a", "key": "x", "value": 1.5, "timestamp": 1700000000000, "step": 0}
    for _ in range(3):
        call("POST", f"{API}runs/log-metric", json=metric)
    assert points(layout) == [("x", 0, 1.5)]


@pytest.mark.parametrize("per_request", [1, 2, 9])
def test_of_several_values_of_a_step_the_last_one_of_mlflow_stays(
    call: Callable[..., httpx.Response], layout: AttemptLayout, per_request: int
) -> None:
    """MLflow orders by time, then by value, whatever the order of requests. Another execution begins anew."""
    logged = [(1, 5, 1.0), (2, 9, 2.0), (2, 4, 1.5), (2, 9, 3.0), (2, 9, 2.5), (3, 6, 7.0), (1, 5, "NaN"), (0, 8, 1.0)]
    logged += [(0, 7, 2.0), (2, 8, 9.0), (4, 1, 1.0)]
    metrics = [{"key": "b", "step": step, "timestamp": time, "value": value} for step, time, value in logged]
    for start in range(0, len(metrics), per_request):
        body = {"run_id": "a1", "metrics": metrics[start : start + per_request]}
        assert call("POST", f"{API}runs/log-batch", json=body).is_success
    stored = [(1, 1.0), (2, 2.0), (2, 3.0), (3, 7.0), (0, 1.0), (4, 1.0)]
    assert [(step, value) for _, step, value in points(layout)] == stored
    read = call("GET", f"{API}runs/get?run_id=a1").json()["run"]["data"]["metrics"]
    assert [(one["step"], one["value"]) for one in read] == [(4, 1.0)]


def test_a_later_execution_may_log_an_earlier_time(
    listener: TrackerListener, call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    for execution, value in ((1, 3.0), (2, 2.0)):
        metrics = [{"key": "b", "step": 2, "timestamp": 9 - execution, "value": value}]
        token = tracker_token(listener.secret, Reporter(execution, 0))
        assert call("POST", f"{API}runs/log-batch", token, json={"run_id": "a1", "metrics": metrics}).is_success
        assert points(layout, execution) == [("b", 2, value)]


def test_values_without_steps_are_counted_in_their_order(
    call: Callable[..., httpx.Response], layout: AttemptLayout
) -> None:
    metrics = [{"key": "b", "timestamp": 9 - value, "value": value} for value in range(3)]
    call("POST", f"{API}runs/log-batch", json={"run_id": "a1", "metrics": metrics})
    call("POST", f"{API}runs/log-metric", json={"run_id": "a1", "key": "b", "timestamp": 1, "value": 3})
    assert points(layout) == [("b", step, step) for step in range(4)]


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_program_behind_a_proxy_reaches_the_listener(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
    # Nothing answers there.
    proxy = {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": "example.org", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    variables = proxy | tracker_variables(base | proxy, 1)
    assert variables["NO_PROXY"] == "example.org,127.0.0.1"
    run_program("import mlflow; mlflow.log_metric('loss', 1.0)", tmp_path, variables, clients)
    assert points(layout) == [("loss", 0, 1.0)]


MODEL = """
import mlflow
import mlflow.pyfunc

class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input

with mlflow.start_run():
    for _ in range(2):
        logged = mlflow.pyfunc.log_model(
            name="model", python_model=Model(), params={"a": 1}, registered_model_name="mine"
        )
    mlflow.log_metric("after", 1.0)
    run = mlflow.active_run().info.run_id
for uri in (logged.model_uri, f"runs:/{run}/model"):
    print("loaded", mlflow.pyfunc.load_model(uri).predict([7]))
print("files", [file.path for file in mlflow.MlflowClient().list_artifacts(run)])
version = mlflow.register_model(logged.model_uri, "mine").version
mlflow.MlflowClient().set_registered_model_alias("mine", "best", version)
print("version", version, mlflow.MlflowClient().get_model_version("mine", "1").status)
"""


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_logged_and_registered_models_are_artifacts(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    output = run(listener, tmp_path, MODEL, clients)
    assert output.count("loaded [7]") == 2
    assert "files ['model', 'model-2']" in output
    assert "version 3 READY" in output
    assert points(layout) == [("after", 0, 1.0)]
    files = (tmp_path / "job" / "artifacts" / "mlflow" / "0").glob("*/artifacts/*/MLmodel")
    assert sorted(path.parent.name for path in files) == ["model", "model-2"]
    assert [event.data for event in events(layout)] == [{"kind": "mlflow_registry"}]


def test_a_model_is_read_and_changed(call: Callable[..., httpx.Response]) -> None:
    given = {"name": ".a/b", "experiment_id": "0", "params": [{"key": "lr", "value": "1"}]}
    made = call("POST", f"{API}logged-models", json=given).json()["model"]
    path = f"{API}logged-models/{made['info']['model_id']}"
    assert made["info"]["artifact_uri"].endswith("/artifacts/a_b")
    assert call("POST", f"{path}/params", json={"params": [{"key": "x", "value": "2"}]}).status_code == 200
    call("PATCH", f"{path}/tags", json={"tags": [{"key": "t", "value": "v"}]})
    assert call("PATCH", path, json={"status": "LOGGED_MODEL_READY"}).status_code == 200
    read = call("GET", path).json()["model"]
    assert (read["info"]["status"], read["info"]["tags"]) == ("LOGGED_MODEL_READY", [{"key": "t", "value": "v"}])
    assert [one["key"] for one in read["data"]["params"]] == ["lr", "x"]
    assert call("POST", f"{API}logged-models/search", json={}).json()["models"] == [read]
    assert call("GET", f"{API}logged-models/m-1").status_code == 404
    for route in ("registered-models/get?name=a", "model-versions/get?name=a&version=1"):
        assert call("GET", API + route).status_code == 404


@pytest.mark.parametrize("clients", CLIENTS_OF_DETAILS)
def test_hidden_files_are_artifacts_under_a_visible_name(
    listener: TrackerListener, tmp_path: Path, clients: Clients
) -> None:
    text = (
        "import mlflow\nmlflow.log_text('a: 1', 'out/.hydra/config.yaml')\nrun = mlflow.active_run().info.run_id\n"
        "print(mlflow.artifacts.load_text(f'runs:/{run}/out/.hydra/config.yaml'))"
    )
    assert "a: 1" in run(listener, tmp_path, text, clients)
    assert len(list((tmp_path / "job" / "artifacts" / "mlflow").glob("0/*/artifacts/out/_.hydra/config.yaml"))) == 1


LINKED_MODELS = """
import mlflow
import mlflow.pyfunc

class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input

with mlflow.start_run():
    for epoch in range(5):
        mlflow.log_metric("acc", epoch / 10)
        mlflow.log_metric("loss", epoch, step=epoch)
        made = mlflow.pyfunc.log_model(name=f"epoch-{epoch}", python_model=Model(), pip_requirements=[])
    mlflow.log_metric("score", 0.5, model_id=made.model_id)
    run = mlflow.active_run().info.run_id
print("history", len(mlflow.MlflowClient().get_metric_history(run, "acc")))
"""


def test_metrics_that_are_linked_to_models_are_recorded_once(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path
) -> None:
    """MLflow 3 sends the points of a run again with each model, and with its id."""
    assert "history 5" in run(listener, tmp_path, LINKED_MODELS, "installed")
    stored = points(layout)
    assert [(step, value) for key, step, value in stored if key == "acc"] == [(n, n / 10) for n in range(5)]
    assert [(step, value) for key, step, value in stored if key == "loss"] == [(n, float(n)) for n in range(5)]
    assert [value for key, _, value in stored if key == "score"] == [0.5]


@pytest.mark.parametrize("order", [range(20), range(19, -1, -1)])
def test_replayed_requests_change_nothing(
    call: Callable[..., httpx.Response], layout: AttemptLayout, order: range
) -> None:
    """Of any request of the run, in any order, also with points without steps and times that go back."""
    metrics = [
        {"key": key, "value": value, "timestamp": 1700000000000 + at // 2, "step": step}
        for at in order
        for key, value, step in (("x", at, at), ("counted", at, 0), ("nan", "NaN", at))
    ]
    requests = [{"run_id": "a", "metrics": metrics[start : start + 7]} for start in range(0, len(metrics), 7)]
    for request in requests:
        assert call("POST", f"{API}runs/log-batch", json=request).status_code == 200
    first = [str(point) for point in points(layout)]
    assert len(first) == len(metrics)
    for request in [*reversed(requests), *requests]:
        halves = request["metrics"][:3], request["metrics"][3:]
        for half in halves:
            assert call("POST", f"{API}runs/log-batch", json={"run_id": "a", "metrics": half}).status_code == 200
    assert [str(point) for point in points(layout)] == first
