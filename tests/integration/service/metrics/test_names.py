"""Names of programs from the tracker's spool through the database to everything that reads them: distinct ones stay
distinct, and printable ones are as they were logged."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.metrics.summaries import back_fill
from tests.support.world import World
from trainyard.client import Client
from trainyard.contract.job_query import Key
from trainyard.contract.layout import RunLayout
from trainyard.contract.stored_name import metric_name, stored_name
from trainyard.contract.wire.spool import parse_spool
from worker.trackers.journal import Journal, TrackedValue

pytestmark = [pytest.mark.databases, pytest.mark.cpu_seconds(20)]

ODD = ["λ", "μ", "acc@1", "acc#1", "a,b", "`q`", "loss (val)", "準確率", "😀", 'a"b', "a\\b", "50%"]
ALIKE = ["a\nb", "a\tb", r"a\nb", "\0", "\ufffd", "\ud800", "é", "e\u0301", "É", " x", "x", "x ", "X", "x" * 251]
LIKE_SYNTAX = [
    "name",
    "min(x)",
    "metrics.x",
    "metrics.metrics.x",
    "-x",
    "--",
    "a=b",
    "a:b",
    "a;b",
    "'",
    "''",
    "a``b",
    "$.x",
]
LONG = ["😀" * 250, "😀" * 251, "\U00020000" * 250, "`" * 250, "," * 250, '"' * 249 + "\\"]
SYSTEM = [
    "system/x",
    "system/node-0/cpu_percent",
    "System/node-0/x",
    "system/node-0",
    "program/system/node-0/cpu_percent",
]
_NAMES = st.lists(
    st.text(alphabet=st.characters(exclude_categories=[]), max_size=260), min_size=1, max_size=8, unique=True
)


@pytest.fixture
def report(world: World, tmp_path: Path) -> Callable[[Sequence[str]], str]:
    """Return a function that reports a metric, a parameter and a tag of each name by a spool, and returns the job."""
    numbers = count()

    def make(names: Sequence[str]) -> str:
        job = world.submit(name=f"job {next(numbers)}")
        worker = world.start(job)
        layout = RunLayout(tmp_path / job).attempt("1-a")
        layout.root.mkdir(parents=True)
        journal, now = Journal(layout, 0), datetime.now(UTC)
        journal.log(1, "mlflow", [TrackedValue(name, number, 1, now) for number, name in enumerate(names)])
        values = dict(zip(names, map(str, range(len(names))), strict=True))
        journal.describe(1, parameters={name: int(value) for name, value in values.items()}, tags=values)
        journal.close()
        for record in parse_spool(layout.tracker_spool(1, 0)):
            answer = worker.client.post(
                f"/v1/attempts/{worker.attempt_id}/{record.kind}",
                content=record.body_text,
                headers={"content-type": "application/json"},
            )
            assert answer.status_code == 200, answer.text
        after: int | None = 0
        while after is not None:
            after = back_fill(world.database, after)
        worker.end("completed")
        world.reconciler.run_once()
        return job

    return make


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    def answer(request: httpx.Request) -> httpx.Response:
        headers = {**request.headers, "accept-encoding": "identity"}
        got = world.client.request(request.method, str(request.url), headers=headers, content=request.content)
        return httpx.Response(got.status_code, headers=dict(got.headers), content=got.content)

    with Client("http://localhost", world.token, transport=httpx.MockTransport(answer)) as made:
        yield made


def check(world: World, client: Client, job: str, names: Sequence[str]) -> None:
    """Check that every reader finds each metric, parameter and tag with the value that its name has in the list."""
    expected = {metric_name(name): float(number) for number, name in enumerate(names)}
    assert len(expected) == len(names)
    check_curves(client, job, names, expected)
    assert dict(sorted(client.job(job).resource.metrics.items())) == dict(sorted(expected.items()))
    check_mlflow(world, job, names)
    for number, name in enumerate(names):
        metric, stored = metric_name(name), stored_name(name)
        values: dict[Key, Any] = {
            Key(f"metrics.{metric}"): expected[metric],
            Key(f"metrics.{metric}", "max"): expected[metric],
            Key(f"parameters.{stored}"): number,
            Key(f"tags.{stored}"): str(number),
        }
        check_table(world, job, values, sort=list(values)[number % len(values)])
    keys = [key["key"] for key in world.client.get("/v1/job-keys").json()["data"] if key["kind"] == "metric"]
    page = world.client.get("/v1/jobs", params={"columns": keys, "search": job}).json()["data"]
    assert sorted(value for value in page[0]["values"].values() if value is not None) == sorted(expected.values())


def check_curves(client: Client, job: str, names: Sequence[str], expected: dict[str, float]) -> None:
    curves = client.metrics(job).series
    assert {one.key: one.values for one in curves} == {key: [value] for key, value in expected.items()}
    assert [one.values for one in client.metrics(job, list(map(metric_name, names))).series] == [
        [float(number)] for number in range(len(names))
    ]
    rows = list(csv.DictReader(io.StringIO(client.metrics_csv(job))))
    assert {row["key"]: float(row["value"]) for row in rows} == expected
    for name, value in expected.items():
        assert [(point.key, point.value) for point in client.points(job, name)] == [(name, value)]


def check_mlflow(world: World, job: str, names: Sequence[str]) -> None:
    run = world.client.get("/mlflow/api/2.0/mlflow/runs/get", params={"run_id": job}).json()["run"]["data"]
    assert {one["key"]: one["value"] for one in run["params"]}.items() >= {
        stored_name(name): str(number) for number, name in enumerate(names)
    }.items()
    for number, name in enumerate(map(metric_name, names)):
        query = {"run_id": job, "metric_key": name}
        answer = world.client.get("/mlflow/api/2.0/mlflow/metrics/get-history", params=query).json()
        assert [(one["key"], one["value"]) for one in answer["metrics"]] == [(name, float(number))]
        quoted = name.replace("`", "``")
        body = {"experiment_ids": ["0"], "filter": f"metrics.`{quoted}` = {number} AND run_id = '{job}'"}
        runs = world.client.post("/mlflow/api/2.0/mlflow/runs/search", json=body).json()["runs"]
        assert [one["info"]["run_id"] for one in runs] == [job]


def check_table(world: World, job: str, values: dict[Key, Any], sort: Key) -> None:
    """Check the query and the columns of keys, and the order of one of them."""
    texts = {key: f'"{value}"' if isinstance(value, str) else value for key, value in values.items()}
    where = " and ".join([f"{key} = {text}" for key, text in texts.items()] + [f"id = {job}"])
    params = {"where": where, "sort": str(sort), "columns": [str(key) for key in values]}
    answer = world.client.get("/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    shown = {str(key): value for key, value in values.items()}
    assert [(row["id"], row["values"]) for row in answer.json()["data"]] == [(job, shown)]


def test_odd_names_are_as_they_were_logged(world: World, client: Client, report: Callable[..., str]) -> None:
    job = report(ODD)
    check(world, client, job, ODD)
    assert {one.key for one in client.metrics(job).series} == set(ODD)
    assert client.job(job).resource.parameters == dict(zip(ODD, range(len(ODD)), strict=True))


@pytest.mark.parametrize("names", [ALIKE, LIKE_SYNTAX, LONG, SYSTEM], ids=["alike", "syntax", "long", "system"])
def test_similar_names_stay_distinct(
    world: World, client: Client, report: Callable[..., str], names: Sequence[str]
) -> None:
    check(world, client, report(names), names)


@pytest.mark.databases("sqlite")
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@example(["a,", ",b", "a", "b", "a,,b"])
@given(_NAMES)
def test_any_names_stay_distinct(
    world: World, client: Client, report: Callable[..., str], names: Sequence[str]
) -> None:
    check(world, client, report(names), names)


def test_old_form_of_several_keys_is_split_at_commas(world: World, report: Callable[..., str]) -> None:
    job = report(["a", "b", "a,b"])

    def curves(**params: Any) -> list[tuple[str, list[float]]]:
        answer = world.client.get(f"/v1/jobs/{job}/metrics", params=params).json()
        return [(one["key"], one["values"]) for one in answer["series"]]

    assert curves(keys="a,b") == [("a", [0.0]), ("b", [1.0])]
    assert curves(key="a,b") == [("a,b", [2.0])]
    assert curves(key=["a,b", "a"]) == [("a,b", [2.0]), ("a", [0.0])]
