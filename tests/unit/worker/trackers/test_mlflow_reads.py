"""What a program reads back with MLflow's client is right, or an error."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.tracker_clients import CLIENTS, Clients, run_program
from tests.support.tracker_spool import bodies, events, tags
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.wire.reports import ParametersReport
from worker.trackers.listener import TrackerListener
from worker.trackers.mlflow import API
from worker.trackers.mlflow_runs import MetricPoint, PointHistories
from worker.trackers.tracker_requests import Reporter
from worker.trackers.variables import tracker_token, tracker_variables

pytestmark = pytest.mark.cpu_seconds(12)

READS = """
import json
import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

client, answers = MlflowClient(), {}
other = client.create_experiment("other")
with mlflow.start_run() as unnamed:
    for value in range(30):
        mlflow.log_metric("a", value)
    mlflow.log_metric("score", 0.01)
with mlflow.start_run(run_name="named", tags={"kind": "x"}) as named:
    mlflow.log_metrics({"score": 0.5, "nan": float("nan")})
    mlflow.log_param("p1", 1)
    mlflow.log_param("p1", 1)
    try:
        mlflow.log_param("p1", 99)
    except MlflowException as error:
        answers["changed"] = [error.error_code, "Changing param values is not allowed" in str(error)]
    mlflow.set_tag("gone", "1")
    mlflow.delete_tag("gone")
third = client.create_run(other, run_name="third")
client.log_metric(third.info.run_id, "score", 0.7)
names = {unnamed.info.run_id: "unnamed", named.info.run_id: "named", third.info.run_id: "third"}

def names_of(*arguments, **options):
    return [names[run.info.run_id] for run in client.search_runs(*arguments, **options)]

answers["history"] = [point.value for point in client.get_metric_history(unnamed.info.run_id, "a")]
answers["nan"] = str(client.get_metric_history(named.info.run_id, "nan")[0].value)
answers["filter"] = names_of(["0", other], "metrics.score > 0.05 and tags.kind = 'x'")
answers["parameter"] = names_of(["0", other], "params.p1 = '1' AND attributes.run_name LIKE 'na%'")
answers["best"] = names_of(["0", other], order_by=["metrics.score DESC"])
answers["worst"] = names_of(["0", other], order_by=["metrics.score ASC"])
answers["with value"] = names_of(["0", other], order_by=["params.p1", "metrics.score"])
answers["experiment"] = names_of([other])
answers["newest"] = names_of(["0"])
page = client.search_runs(["0", other], max_results=2)
answers["pages"] = [len(page), len(client.search_runs(["0", other], max_results=2, page_token=page.token))]
refused = {"or": {"filter_string": "metrics.a = 1 or metrics.a = 2"}, "order": {"order_by": ["x.y"]}}
for name, arguments in refused.items():
    try:
        client.search_runs(["0"], **arguments)
    except MlflowException as error:
        answers[name] = error.error_code
answers["tags"] = sorted(set(client.get_run(named.info.run_id).data.tags) & {"gone", "kind"})
answers["experiments"] = [one.name for one in client.search_experiments(filter_string="name LIKE 'oth%'")]
print(json.dumps(answers))
"""


@pytest.mark.parametrize("clients", CLIENTS)
def test_reads_of_the_program_are_right(
    listener: TrackerListener, layout: AttemptLayout, tmp_path: Path, clients: Clients
) -> None:
    base = {"TRAINYARD_TRACKER_URL": listener.url, "TRAINYARD_TRACKER_SECRET": listener.secret}
    output = run_program(READS, tmp_path, tracker_variables(base, 1), clients)
    assert json.loads(output.splitlines()[-1]) == {
        "history": list(range(30)),
        "nan": "nan",
        "changed": ["INVALID_PARAMETER_VALUE", True],
        "filter": ["named"],
        "parameter": ["named"],
        "best": ["third", "named", "unnamed"],
        "worst": ["unnamed", "named", "third"],
        "with value": ["named", "unnamed", "third"],
        "experiment": ["third"],
        "newest": ["named", "unnamed"],
        "pages": [2, 1],
        "or": "INVALID_PARAMETER_VALUE",
        "order": "INVALID_PARAMETER_VALUE",
        "tags": ["kind"],
        "experiments": ["other"],
    }
    removed = [body.removed_tags for body in bodies(layout) if isinstance(body, ParametersReport) and body.removed_tags]
    assert removed == [("named/gone",)]
    assert {name: tag for name, tag in tags(layout).items() if name.endswith("run")} == {
        "named/run": "named",
        "third/run": "third",
    }


def create_run(call: Callable[..., httpx.Response], **fields: Any) -> str:
    run_id: str = call("POST", f"{API}runs/create", json=fields).json()["run"]["info"]["run_id"]
    return run_id


def test_the_first_run_s_name_is_a_tag_of_the_job(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    run_id = create_run(call, run_name="first")
    assert tags(layout) == {"run": "first"}
    call("POST", f"{API}runs/set-tag", json={"run_id": run_id, "key": "mlflow.runName", "value": "second"})
    assert tags(layout) == {"run": "second"}
    call("POST", f"{API}runs/update", json={"run_id": run_id, "run_name": "third"})
    assert tags(layout) == {"run": "third"}
    assert call("GET", f"{API}runs/get?run_id={run_id}").json()["run"]["info"]["run_name"] == "third"


def test_a_restarted_program_logs_other_parameters(
    listener: TrackerListener, call: Callable[..., httpx.Response]
) -> None:
    given = {"run_id": create_run(call), "key": "lr", "value": "1"}
    assert call("POST", f"{API}runs/log-parameter", json=given).status_code == 200
    batch = {"run_id": given["run_id"], "params": [{"key": "lr", "value": "2"}]}
    assert call("POST", f"{API}runs/log-batch", json=batch).status_code == 400
    restarted = tracker_token(listener.secret, Reporter(2, 0))
    assert call("POST", f"{API}runs/log-batch", restarted, json=batch).status_code == 200


def test_a_history_is_read_in_pages(call: Callable[..., httpx.Response]) -> None:
    run_id = create_run(call)
    metrics = [{"key": "x", "value": one, "timestamp": 1000 + one, "step": one} for one in range(5)]
    call("POST", f"{API}runs/log-batch", json={"run_id": run_id, "metrics": metrics})
    path = f"{API}metrics/get-history?run_id={run_id}&metric_key=x&max_results=3"
    first = call("GET", path).json()
    second = call("GET", f"{path}&page_token={first['next_page_token']}").json()
    assert first["metrics"] + second["metrics"] == metrics
    assert "next_page_token" not in second
    assert call("GET", f"{path}&page_token=x").status_code == 400


def test_the_history_of_a_run_of_an_earlier_attempt_is_an_error(call: Callable[..., httpx.Response]) -> None:
    metric = {"run_id": "b", "key": "x", "value": 2.5, "timestamp": 1700000000000, "step": 3}
    assert call("POST", f"{API}runs/log-metric", json=metric).status_code == 200
    answer = call("GET", f"{API}metrics/get-history?run_id=b&metric_key=x")
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_STATE")


def test_a_run_s_metric_is_that_of_the_highest_step(call: Callable[..., httpx.Response]) -> None:
    run_id = create_run(call)
    for step, value in ((5, "NaN"), (3, 1.0)):
        metric = {"run_id": run_id, "key": "x", "value": value, "timestamp": 1000, "step": step}
        call("POST", f"{API}runs/log-metric", json=metric)
    data = call("GET", f"{API}runs/get?run_id={run_id}").json()["run"]["data"]
    assert data["metrics"] == [{"key": "x", "value": "NaN", "timestamp": 1000, "step": 5}]


def test_datasets_are_stated_once(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    run_id = create_run(call)
    for _ in range(2):
        assert call("POST", f"{API}runs/log-inputs", json={"run_id": run_id, "datasets": []}).status_code == 200
    assert [event.data for event in events(layout)] == [{"kind": "mlflow_inputs"}]


def test_deleted_notes_and_unknown_tags(call: Callable[..., httpx.Response], layout: AttemptLayout) -> None:
    run_id = create_run(call)
    note = {"run_id": run_id, "key": "mlflow.note.content"}
    call("POST", f"{API}runs/set-tag", json=note | {"value": "text"})
    assert call("POST", f"{API}runs/delete-tag", json=note).status_code == 200
    assert [body.notes for body in bodies(layout)] == ["text", ""]
    assert call("POST", f"{API}runs/delete-tag", json={"run_id": run_id, "key": "none"}).status_code == 404


@pytest.mark.parametrize(
    ("search", "names"),
    [
        ({}, ["b", "a"]),
        ({"filter": "name = 'a'"}, ["a"]),
        ({"filter": "tags.t = 'v'"}, ["b"]),
        ({"filter": "params.p = '1'"}, ["b"]),
        ({"order_by": [{"field_name": "name"}]}, ["a", "b"]),
        ({"order_by": [{"field_name": "name", "ascending": False}]}, ["b", "a"]),
        ({"experiment_ids": ["1"]}, ["a"]),
    ],
)
def test_models_are_searched(call: Callable[..., httpx.Response], search: dict[str, Any], names: Sequence[str]) -> None:
    call("POST", f"{API}logged-models", json={"name": "a", "experiment_id": "1"})
    described = {"tags": [{"key": "t", "value": "v"}], "params": [{"key": "p", "value": "1"}]}
    call("POST", f"{API}logged-models", json={"name": "b", "experiment_id": "0"} | described)
    models = call("POST", f"{API}logged-models/search", json=search).json()["models"]
    assert [model["info"]["name"] for model in models] == names


@pytest.mark.parametrize("search", [{"datasets": [{"dataset_name": "a"}]}, {"filter": "metrics.a > 1"}])
def test_models_are_not_searched_by_what_they_do_not_have(
    call: Callable[..., httpx.Response], search: dict[str, Any]
) -> None:
    answer = call("POST", f"{API}logged-models/search", json=search)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_tags_of_experiments_are_read_back(call: Callable[..., httpx.Response]) -> None:
    tag = {"experiment_id": "0", "key": "team", "value": "a"}
    assert call("POST", f"{API}experiments/set-experiment-tag", json=tag).status_code == 200
    experiment = call("GET", f"{API}experiments/get?experiment_id=0").json()["experiment"]
    assert experiment["tags"] == [{"key": "team", "value": "a"}]
    created = [call("POST", f"{API}experiments/create", json={"name": name}).status_code for name in ("b", "b", "")]
    assert created == [200, 400, 400]
    experiments = call("POST", f"{API}experiments/search", json={"order_by": ["experiment_id DESC"]}).json()[
        "experiments"
    ]
    assert [one["name"] for one in experiments] == ["b", "Default"]


class TestPointHistories:
    """The histories of a launcher have a bound."""

    def test_only_the_longest_is_forgotten_and_cannot_be_read(self) -> None:
        histories = PointHistories(limit=100)
        for number in range(80):
            histories.add("a", "long", 1, MetricPoint(number, number, 1))
            if number < 10:
                histories.add("a", "short", 1, MetricPoint(number, number, 1))
        assert [point.step for point in histories.read("a", "short", 0, 100)[0]] == list(range(10))
        with pytest.raises(Exception, match="keeps 100 points"):
            histories.read("a", "long", 0, 100)

    @pytest.mark.parametrize("times", [(3, 3, 5), (5, 3, 3)])
    def test_point_is_known_by_value_step_and_time(self, times: tuple[int, int, int]) -> None:
        histories = PointHistories()
        points = [MetricPoint(value, 2, time) for value, time in zip((1.0, float("nan"), 4.0), times, strict=True)]
        for point in points:
            assert histories.has("a", "x", point) is False
            histories.add("a", "x", 1, point)
        assert all(histories.has("a", "x", MetricPoint(*point)) for point in points)
        changed = [points[0]._replace(value=1.5), points[0]._replace(step=1), points[1]._replace(time=4)]
        assert not any(histories.has("a", "x", point) for point in changed)
        assert histories.has("b", "x", points[0]) is False

    def test_parts_are_read(self) -> None:
        histories = PointHistories()
        points = [MetricPoint(float(number), number, 1) for number in range(5)]
        for point in points:
            histories.add("a", "x", 1, point)
        assert histories.read("a", "x", 1, 4) == (points[1:4], True)
        assert histories.read("a", "x", 4, 9) == (points[4:], False)
