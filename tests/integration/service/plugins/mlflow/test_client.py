"""MLflow's own client reads jobs from the service: experiments, runs, histories and artifacts."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.auth.tokens import Role
from tests.support.live_world import served
from tests.support.prepared_interpreter import PreparedInterpreter, prepared_interpreter
from tests.support.world import World

# The SQL of these reads is tested in test_routes.py, on both databases.
pytestmark = [pytest.mark.databases("sqlite"), pytest.mark.cpu_seconds(8)]

Read = Callable[..., Any]

_HEAD = """
import json, os, sys
import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
def state(run):
    info = run.info
    return {"id": info.run_id, "name": info.run_name, "experiment": info.experiment_id, "status": info.status,
            "started": info.start_time, "ended": info.end_time, **run.data.to_dictionary()}
def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except MlflowException as error:
        return [error.error_code, error.message]
"""


@pytest.fixture(scope="module")
def interpreter() -> Iterator[PreparedInterpreter]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    settings = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    with prepared_interpreter(_HEAD, environ | settings) as made:
        yield made


@pytest.fixture
def read(world: World, tmp_path: Path, interpreter: PreparedInterpreter) -> Iterator[Read]:
    """Return a function that runs Python statements with MLflow's client, and returns what they assign to `out`."""
    with served(world) as url:

        def run(text: str, token: str = world.token) -> Any:
            variables = {"MLFLOW_TRACKING_URI": f"{url}/mlflow", "MLFLOW_TRACKING_TOKEN": token}
            return interpreter.run(f"client = MlflowClient()\n{text}", tmp_path, variables)

        yield run


def new_token(world: World, name: str, role: Role) -> str:
    answer = world.client.post("/v1/tokens", json={"name": name, "role": role})
    return str(answer.json()["token"])


def tracked_job(world: World, **changes: Any) -> str:
    """Submit a job, and report what a program logs to MLflow."""
    job = world.submit(**changes)
    worker = world.start(job)
    worker.metrics([("loss", step, 1.0 / step) for step in range(1, 6)] + [("accuracy", 3, 0.5), ("bad", 1, "NaN")])
    worker.post(
        "parameters",
        {"execution": 1, "parameters": {"lr": 3e-4, "on": True}, "tags": {"team": "nlp"}, "notes": "first"},
    )
    folder = world.app_state.run_layout(job).artifacts
    for path, text in {
        "mlflow/0/aaa/artifacts/notes/end.txt": "done",
        "mlflow/0/aaa/artifacts/top.txt": "top",
        "profile/trace.json": "{}",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return job


def test_client_reads_a_run_with_its_history_and_artifacts(world: World, read: Read) -> None:
    job = tracked_job(world, name="first", metadata={"git_commit": "abc", "group": "a"})
    world.clock.advance(60)
    world.worker(job).end("completed")
    world.tick()
    text = f"""
run = client.get_run({job!r})
files = [[f.path, f.is_dir, f.file_size] for f in client.list_artifacts({job!r})]
inner = [f.path for f in client.list_artifacts({job!r}, "notes")]
one = open(mlflow.artifacts.download_artifacts(run_id={job!r}, artifact_path="notes/end.txt")).read()
tree = mlflow.artifacts.download_artifacts(run_id={job!r}, artifact_path="notes")
history = [[m.step, m.value, m.timestamp > 0] for m in client.get_metric_history({job!r}, "loss")]
steps = {{m.key: m.step for m in run.data._metric_objs}}
out = [state(run), steps, history, files, inner, one, os.listdir(tree), str(run.data.metrics["bad"])]
"""
    run, steps, history, files, inner, one, tree, bad = read(text.replace("state(run)", "{**state(run), 'metrics': 0}"))
    assert (run["id"], run["name"], run["experiment"], run["status"]) == (job, "first", "0", "FINISHED")
    assert run["started"] < run["ended"]
    assert {name: run["params"][name] for name in ("lr", "on", "spec.gpus")} == {
        "lr": "0.0003",
        "on": "True",
        "spec.gpus": "2",
    }
    tags = {"team": "nlp", "group": "a", "mlflow.note.content": "first", "mlflow.user": "admin"}
    assert tags | {"mlflow.source.git.commit": "abc"} == {
        name: run["tags"][name] for name in (*tags, "mlflow.source.git.commit")
    }
    assert steps == {"loss": 5, "accuracy": 3, "bad": 1}
    assert history == [[step, 1 / step, True] for step in range(1, 6)]
    assert files == [["notes", True, None], ["profile", True, None], ["top.txt", False, 3]]
    assert (inner, one, tree, bad) == (["notes/end.txt"], "done", ["end.txt"], "nan")


def test_client_finds_runs_by_filters(world: World, read: Read) -> None:
    first = tracked_job(world, name="first")
    second = world.submit(name="second", metadata={"team": "vision"})
    world.submit(name="other")
    text = """
def names(text, **options):
    return [run.info.run_name for run in client.search_runs(["0"], filter_string=text, **options)]
out = {text: names(text) for text in json.loads(FILTERS)}
out["ascending"] = names("", order_by=["start_time ASC"])
out["all"] = [run.info.run_id for run in mlflow.search_runs(output_format="list")]
"""
    expected = {
        "": ["other", "second", "first"],
        "params.lr = '3e-4'": ["first"],
        "params.lr = '0.1'": [],
        "params.`spec.gpus` = '2' and run_name != 'other'": ["second", "first"],
        "metrics.loss < 0.5": ["first"],
        "metrics.loss > 0.5": [],
        "metrics.bad > 0": [],
        "tags.team = 'nlp'": ["first"],
        "tags.team IN ('nlp', 'vision')": ["second", "first"],
        "tags.team IS NULL": ["other"],
        "attributes.status = 'RUNNING'": ["first"],
        "status IN ('RUNNING', 'SCHEDULED') AND attributes.run_name LIKE '%ir%'": ["first"],
        'run_name ILIKE "SEC%"': ["second"],
        "start_time > 1": ["other", "second", "first"],
        f"run_id = '{second}'": ["second"],
    }
    answers = read(text.replace("FILTERS", repr(json.dumps(list(expected)))))
    assert {text: answers[text] for text in expected} == expected
    assert answers["ascending"] == ["first", "second", "other"]
    assert first in answers["all"]


def test_client_reads_sweeps_as_experiments(world: World, read: Read) -> None:
    sweep = world.client.post("/v1/sweeps", json={"name": "rates", "spec": SWEPT, "grid": {"seed": [1, 2]}}).json()
    job = world.submit(name="alone")
    answers = read(
        """
listed = [[one.experiment_id, one.name] for one in mlflow.search_experiments()]
named = [one.name for one in mlflow.search_experiments(filter_string="name LIKE 'ra%'")]
one = mlflow.get_experiment_by_name("rates")
runs = mlflow.search_runs(experiment_names=["rates"], output_format="list")
everything = mlflow.search_runs(search_all_experiments=True, output_format="list")
out = [listed, named, one.experiment_id, client.get_experiment(one.experiment_id).name, client.get_experiment("0").name,
    sorted(run.data.params["spec.seed"] for run in runs), len(everything), mlflow.get_experiment_by_name("none"),
    [run.info.run_id for run in mlflow.search_runs(output_format="list")]]
"""
    )
    listed, named, by_name, name, default, seeds, count, none, alone = answers
    assert listed == [["0", "Default"], [sweep["id"], "rates"]]
    assert (named, by_name, name, default) == (["rates"], sweep["id"], "rates", "Default")
    assert (seeds, count, none, alone) == (["1", "2"], 3, None, [job])


SWEPT = {
    "task": "regression",
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 20,
}


def test_client_shows_errors_in_the_terms_of_mlflow(world: World, read: Read) -> None:
    world.submit()
    errors = read(
        """
out = [
    error_of(client.get_run, "job_00000000000000000000000000"),
    error_of(client.get_experiment, "17"),
    error_of(client.search_runs, ["0"], "params.lr ~ 3"),
    error_of(client.search_runs, ["0"], order_by=["metrics.loss"]),
    error_of(client.create_experiment, "new"),
    error_of(client.log_metric, "job_00000000000000000000000000", "loss", 1.0),
]
"""
    )
    codes = ["RESOURCE_DOES_NOT_EXIST"] * 2 + ["INVALID_PARAMETER_VALUE"] * 2 + ["ENDPOINT_NOT_FOUND"] * 2
    assert [code for code, _ in errors] == codes
    assert "only reads" in errors[4][1]
    assert read("out = error_of(client.get_experiment, '0')", token="wrong")[0] == "UNAUTHENTICATED"


def test_client_pages_through_runs_and_points(world: World, read: Read) -> None:
    for number in range(7):
        world.submit(name=f"run-{number}")
    job = tracked_job(world, name="run-7")
    pages = read(
        f"""
page, sizes, names = None, [], []
while page is None or page.token:
    page = client.search_runs(["0"], max_results=3, page_token=page.token if page else None)
    sizes.append(len(page))
    names += [run.info.run_name for run in page]
mlflow.tracking._tracking_service.client.GET_METRIC_HISTORY_MAX_RESULTS = 2
out = [sizes, names, [m.step for m in client.get_metric_history({job!r}, "loss")]]
"""
    )
    assert pages == [[3, 3, 2], [f"run-{number}" for number in range(7, -1, -1)], [1, 2, 3, 4, 5]]


def test_client_reads_metrics_by_the_names_that_were_logged(world: World, read: Read) -> None:
    names = [
        "val/top@5",
        "val/top#5",
        "val/top_5",
        "λ",
        "a,b",
        "loss (val)",
        "準確率",
        "😀",
        "50%",
        "50%25",
        "a\\b",
        'a"b',
        "é+ü",
    ]
    job = world.submit()
    world.start(job).metrics([(name, 1, float(number)) for number, name in enumerate(names)])
    text = f"""
histories = [[[m.key, m.value] for m in client.get_metric_history({job!r}, name)] for name in {names!r}]
filters = [f"metrics.`{{name}}` = {{number}}" for number, name in enumerate({names!r})]
runs = [len(client.search_runs(["0"], filter_string=text)) for text in filters]
out = [client.get_run({job!r}).data.metrics, histories, runs]
"""
    metrics, histories, runs = read(text)
    assert metrics == {name: float(number) for number, name in enumerate(names)}
    assert histories == [[[name, float(number)]] for number, name in enumerate(names)]
    assert runs == [1] * len(names)
