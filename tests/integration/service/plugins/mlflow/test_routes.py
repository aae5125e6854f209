"""What the routes of MLflow's API cost, refuse and hide."""

import os
from typing import Any

import pytest
import sqlalchemy as sa

from service.db.models import DownsampledPoint, DownsampleState, Job, JobParameter, Point
from service.plugins.mlflow import service
from tests.support.statements import statements_of_request
from tests.support.world import World

API = "/mlflow/api/2.0/mlflow"
ARTIFACTS = "/mlflow/api/2.0/mlflow-artifacts/artifacts"


def search(world: World, client: Any = None, **body: Any) -> Any:
    answer = (client or world.client).post(f"{API}/runs/search", json={"experiment_ids": ["0"], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def running_jobs(world: World, count: int) -> list[str]:
    """Submit jobs that have metrics."""
    jobs = []
    for number in range(count):
        job = world.submit(name=f"run-{number}", gpus=1)
        jobs.append(job)
        worker = world.start(job)
        worker.metrics([("loss", 1, 1.0), ("loss", 7, 0.5), ("accuracy", 3, 0.5)])
        worker.end("completed")
        world.tick()
    return jobs


def test_page_of_runs_takes_as_many_statements_as_one_run(world: World) -> None:
    running_jobs(world, 1)
    with statements_of_request("FROM jobs") as one:
        assert len(search(world)["runs"]) == 1
    running_jobs(world, 4)
    with statements_of_request("FROM jobs") as several:
        runs = search(world)["runs"]
    assert len(several) == len(one)
    assert [{each["key"]: each["step"] for each in run["data"]["metrics"]} for run in runs] == [
        {"loss": 7, "accuracy": 3}
    ] * 5


def test_search_that_reads_many_jobs_continues_by_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_RUNS", 3)
    for number in range(8):
        world.submit(name=f"run-{number}")
    names, pages, token = [], 0, ""
    while pages == 0 or token:
        page = search(world, filter="run_name LIKE '%1'", page_token=token)
        names += [run["info"]["run_name"] for run in page["runs"]]
        token, pages = page.get("next_page_token", ""), pages + 1
    assert (names, pages) == (["run-1"], 3)


def test_page_with_many_values_ends_early(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_VALUES", 10)
    jobs = [world.submit() for _ in range(3)]
    first = search(world)
    assert [run["info"]["run_id"] for run in first["runs"]] == [jobs[2]]
    second = search(world, page_token=first["next_page_token"])
    assert [run["info"]["run_id"] for run in second["runs"]] == [jobs[1]]


def test_points_after_a_resume_are_not_the_newest(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("loss", step, 1.0) for step in range(1, 9)])
    worker.execution = 2
    worker.metrics([("loss", 5, 0.25)], resumed=4)
    (run,) = search(world)["runs"]
    (metric,) = run["data"]["metrics"]
    assert metric["step"] == 5
    history = world.client.get(f"{API}/metrics/get-history", params={"run_id": job, "metric_key": "loss"}).json()
    assert [point["step"] for point in history["metrics"]] == [1, 2, 3, 4, 5]


def test_samples_are_read_where_points_were_deleted(world: World) -> None:
    (job,) = running_jobs(world, 1)
    with world.database.write() as session:
        pk = session.scalars(sa.select(Job.pk)).one()
        points = session.scalars(sa.select(Point).where(Point.job_pk == pk)).all()
        columns = ("job_pk", "key_pk", "step", "execution", "value", "special", "time")
        samples = [{name: getattr(point, name) for name in columns} for point in points]
        session.execute(sa.delete(DownsampledPoint))
        session.execute(sa.delete(DownsampleState))
        session.add_all(DownsampledPoint(level=0, **sample) for sample in samples)
        session.add(DownsampleState(job_pk=pk, sequence=99, spacing_bits=0, raw_deleted=True))
        session.execute(sa.delete(Point))
    (run,) = search(world)["runs"]
    assert {each["key"]: each["step"] for each in run["data"]["metrics"]} == {"loss": 7, "accuracy": 3}
    query = {"run_id": job, "metric_key": "loss", "max_results": 1}
    first = world.client.get(f"{API}/metrics/get-history", params=query).json()
    query["page_token"] = first["next_page_token"]
    second = world.client.get(f"{API}/metrics/get-history", params=query).json()
    assert [point["step"] for point in first["metrics"] + second["metrics"]] == [1, 7]
    assert "next_page_token" not in second


def test_equality_of_parameters_uses_the_index(world: World) -> None:
    jobs = running_jobs(world, 2)
    with world.database.write() as session:
        session.add(JobParameter(key="lr", value="0.1", job_id=jobs[0]))
    with statements_of_request("FROM jobs") as statements:
        search(world, filter="params.lr = '0.1'")
    assert any("job_parameters" in statement for statement in statements)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"filter": "params.x ~ 1"}, 400, "INVALID_PARAMETER_VALUE"),
        ({"filter": "status = 'DONE'"}, 400, "INVALID_PARAMETER_VALUE"),
        ({"order_by": ["metrics.loss DESC"]}, 400, "INVALID_PARAMETER_VALUE"),
        ({"page_token": "x"}, 400, "INVALID_PARAMETER_VALUE"),
        ({"max_results": 0}, 400, "INVALID_PARAMETER_VALUE"),
        ({"experiment_ids": "0"}, 400, "INVALID_PARAMETER_VALUE"),
    ],
)
def test_invalid_searches_are_refused(world: World, body: dict[str, Any], status: int, code: str) -> None:
    answer = world.client.post(f"{API}/runs/search", json={"experiment_ids": ["0"], **body})
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)
    assert answer.json()["message"]


def test_errors_have_the_form_of_mlflow(world: World) -> None:
    body = {"experiment_ids": ["0"]}
    no_token = world.new_client(None).post(f"{API}/runs/search", json=body)
    assert (no_token.status_code, no_token.json()["error_code"]) == (401, "UNAUTHENTICATED")
    job = world.submit()
    worker = world.start(job)
    denied = worker.client.post(f"{API}/runs/search", json=body)
    assert (denied.status_code, denied.json()["error_code"]) == (403, "PERMISSION_DENIED")
    unknown = world.client.put(f"{ARTIFACTS}/{job}/x.txt", content=b"x")
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, "ENDPOINT_NOT_FOUND")
    large = world.client.post(f"{API}/runs/search", content=b"x" * 300_000)
    assert (large.status_code, large.json()["error_code"]) == (413, "BAD_REQUEST")
    text = world.client.post(f"{API}/runs/search", content=b"{")
    assert (text.status_code, text.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_paths_do_not_lead_out_of_the_artifacts(world: World) -> None:
    job = world.submit()
    folder = world.app_state.run_layout(job).artifacts
    folder.mkdir(parents=True)
    (folder.parent / "secret.txt").write_text("x")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "mlflow/0/r/artifacts").mkdir(parents=True)
    (folder / "mlflow/0/r/artifacts/link.txt").symlink_to(folder.parent / "secret.txt")
    for path in ("..%2Fsecret.txt", "%2e%2e/secret.txt", "link.txt", "mlflow/0/r/artifacts/link.txt"):
        answer = world.client.get(f"{ARTIFACTS}/{job}/{path}")
        assert (answer.status_code, answer.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST"), path
    for path in (job, f"{job}/..", f"{job}/../.."):
        assert world.client.get(ARTIFACTS, params={"path": path}).json() == {"files": []}
    assert world.client.get(ARTIFACTS, params={"path": "../x"}).status_code == 404


def test_file_of_the_newest_run_of_a_program_is_shown(world: World) -> None:
    job = world.submit()
    folder = world.app_state.run_layout(job).artifacts
    for number, run in enumerate(("bbb", "aaa")):
        file = folder / f"mlflow/0/{run}/artifacts/model.txt"
        file.parent.mkdir(parents=True)
        file.write_text(run)
        os.utime(file, (1000 + number, 1000 + number))
    assert world.client.get(f"{ARTIFACTS}/{job}/model.txt").text == "aaa"
    assert world.client.get(f"{ARTIFACTS}/{job}/mlflow/0/bbb/artifacts/model.txt").text == "bbb"


def test_deleted_view_is_empty(world: World) -> None:
    world.submit()
    assert search(world, run_view_type="DELETED_ONLY") == {"runs": []}
    answer = world.client.post(f"{API}/experiments/search", json={"view_type": "DELETED_ONLY"})
    assert answer.json() == {"experiments": []}


def test_server_answers_for_its_health_and_version(world: World) -> None:
    assert world.client.get("/mlflow/health").text == "OK"
    assert world.client.get("/mlflow/version").text.count(".") == 2
    assert world.new_client(None).get("/mlflow/version").status_code == 401
