"""Where jobs run as their owners, users see no jobs but their own, on any route."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from service.db.models import UnixUser
from service.db.visibility import Reader, show_jobs_to
from service.streaming.broadcaster import StreamOffset
from service.streaming.subscription import Subscription
from tests.support.operations import Operation, all_operations, request_for
from tests.support.seeds import Seeds, seed
from tests.support.world import SPEC, World

HERE = "http://localhost"
PRIVATE = ("{job_id}", "{sweep_id}", "{estimate_id}", "{model_name}")
"""Parameters of paths that name what belongs to the owner of jobs."""
TEXTS = ("olga", "running", "waiting", "done")
"""The owner, and names of the owner's jobs."""


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    """Return a service whose jobs all belong to `olga`; `otto` and `vera`, a viewer, are others."""
    folder = tmp_path_factory.mktemp("visibility")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", rate_burst=10**6)
    seeds = seed(world)
    with world.database.write() as session:
        for table in ("jobs", "sweeps", "start_estimates", "registered_models"):
            session.execute(sa.text(f"UPDATE {table} SET created_by = 'olga'"))
        for number, name in enumerate(("olga", "otto")):
            session.add(UnixUser(name=name, uid=4711 + number, created_at=world.clock()))
    world.settings.run_as = world.app_state.settings.run_as = "owner"
    yield world, seeds
    world.database.dispose()


def private_operations(world: World) -> list[Operation]:
    operations = all_operations(world)
    return [
        each for each in operations if any(part in each.path for part in PRIVATE) and "/attempts/{" not in each.path
    ]


def send(client: Any, operation: Operation, seeds: Seeds) -> httpx.Response:
    request = request_for(operation, seeds, 1, {})
    headers = {"Content-Type": request.content_type, "Origin": HERE}
    url = f"{request.path}?{request.query}"
    answer: httpx.Response = client.request(request.method, url, content=request.body, headers=headers)
    return answer


@pytest.mark.parametrize(("name", "role"), [("otto", "user"), ("vera", "viewer")])
def test_jobs_of_others_do_not_exist(seeded: tuple[World, Seeds], name: str, role: Any) -> None:
    world, seeds = seeded
    unknown = Seeds(seeds.worker_token, {**seeds.values}, {})
    unknown.values["model_name"] = ["unknown"]
    for parameter in ("job_id", "sweep_id", "estimate_id"):
        unknown.values[parameter] = [f"{seeds.values[parameter][0][:-8]}{number:08}" for number in range(3)]
    client, checked = world.new_user(role, name), 0
    for operation in private_operations(world):
        if operation.path.startswith("/v1/"):
            answer, expected = send(client, operation, seeds), send(client, operation, unknown)
            assert answer.status_code == expected.status_code, operation
            assert answer.status_code in (403, 404), operation
            if operation.method != "HEAD":
                assert answer.json()["error"]["code"] == expected.json()["error"]["code"], operation
            assert "olga" not in answer.text
            checked += answer.status_code == 404
    assert checked > 25


def test_pages_of_jobs_of_others_do_not_exist(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    browser = world.new_client(None)
    token = world.client.post("/v1/tokens", json={"name": "otto", "role": "user"}).json()["token"]
    browser.post("/sign-in", data={"token": token}, headers={"Origin": HERE}, follow_redirects=False)
    job, sweep = seeds.values["job_id"][1], seeds.values["sweep_id"][0]
    for path in (f"/jobs/{job}", f"/submit?fork={job}", f"/submit?from={job}", f"/compare?sweep={sweep}"):
        assert browser.get(path).status_code == 404, path
    for path in ("/jobs", "/compare", f"/compare?job={job}", "/cluster"):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "olga" not in answer.text, path
        assert '"running"' not in answer.text.replace('"status": "running"', ""), path


LISTS = (
    *("/v1/jobs", "/v1/jobs?created_by=olga", "/v1/jobs?search=running", "/v1/jobs?status=running&status=queued"),
    *("/v1/jobs?metadata[team]=nlp", "/v1/sweeps", "/v1/usage", "/v1/models"),
)


@pytest.mark.parametrize("path", LISTS)
def test_lists_leave_jobs_of_others_out(seeded: tuple[World, Seeds], path: str) -> None:
    world, _ = seeded
    answer = world.new_user("user", "otto").get(path)
    assert answer.status_code == 200
    assert answer.json().get("data", answer.json().get("users")) == []
    assert world.client.get(path).json().get("data", [1])


def test_mlflow_hides_jobs_and_sweeps_of_others(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    api, jobs, sweeps = "/mlflow/api/2.0/mlflow", seeds.values["job_id"], seeds.values["sweep_id"]
    reads = [f"runs/get?run_id={jobs[1]}", f"metrics/get-history?run_id={jobs[1]}&metric_key=train/loss"]
    reads += [f"experiments/get?experiment_id={sweeps[0]}", f"../mlflow-artifacts/artifacts?path={jobs[2]}"]
    reads += [f"../mlflow-artifacts/artifacts/{jobs[2]}/profile/step-0000000010-rank-0.txt"]
    for name, is_owner in (("otto", False), ("olga", True)):
        client = world.new_user("user", name)
        runs = client.post(f"{api}/runs/search", json={"experiment_ids": ["0", *sweeps]}).json()["runs"]
        experiments = client.post(f"{api}/experiments/search", json={}).json()["experiments"]
        assert (bool(runs), len(experiments) > 1) == (is_owner, is_owner)
        for path in reads:
            assert client.get(f"{api}/{path}").status_code == (200 if is_owner else 404), path


def test_checkpoint_of_another_user_cannot_be_the_start_of_a_job(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    done = seeds.values["job_id"][2]
    answer = world.new_user("user", "otto").post("/v1/jobs", json={**SPEC, "resume_from": done, "resume": "weights"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "job_not_found")


def test_owner_and_administrators_see_the_jobs(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    for client in (world.new_user("user", "olga"), world.client):
        assert {each["created_by"] for each in client.get("/v1/jobs").json()["data"]} == {"olga"}
        assert client.get(f"/v1/jobs/{seeds.values['job_id'][1]}").status_code == 200
        assert client.get(f"/v1/sweeps/{seeds.values['sweep_id'][0]}").status_code == 200
        assert client.get(f"/v1/models/{seeds.values['model_name'][0]}").status_code == 200
        assert client.get("/v1/usage").json()["users"]


@pytest.mark.parametrize(("name", "count"), [("olga", 1), (None, 1), ("otto", 0)])
def test_stream_of_all_jobs_has_those_of_its_user(seeded: tuple[World, Seeds], name: str | None, count: int) -> None:
    world, _ = seeded

    async def subscribe() -> Subscription:
        show_jobs_to(None if name is None else Reader(name, own_only=True))
        return Subscription(world.app_state.broadcaster, world.app_state.global_source, logs=False, owner="x")

    subscription = asyncio.run(subscribe())
    items = [item for item in world.app_state.global_source.read(StreamOffset(0), False).items if item.owner]
    assert {item.owner for item in items} == {"olga"}
    assert len([item for item in items if subscription._accepts(item)]) == len(items) * count


def test_queries_show_and_suggest_only_own_jobs(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    client = world.new_user("user", "otto")
    for params in ({"where": "seed = 0"}, {"sort": "-seed"}, {"where": "not (status = failed)"}, {"sort": "name"}):
        body = client.get("/v1/jobs", params=params).json()
        assert (body["data"], body["has_more"]) == ([], False), params
    answer = client.get("/v1/jobs", params={"where": "train/los < 1"})
    assert "train/loss" not in answer.text
    assert client.get("/v1/jobs", params={"sort": "train/loss"}).status_code == 422, "as a key that no job has"
    assert {row["kind"] for row in client.get("/v1/job-keys").json()["data"]} == {"column"}
    params = {"sort": "seed", "after": seeds.values["job_id"][0]}
    assert client.get("/v1/jobs", params=params).status_code == 404
    olga = world.new_user("user", "olga")
    assert olga.get("/v1/jobs", params={"where": "seed = 0", "sort": "-seed"}).json()["data"]


def test_a_job_cannot_wait_for_one_of_another_user(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    done, otto, olga = seeds.values["job_id"][2], world.new_user("user", "otto"), world.new_user("user", "olga")
    problem = f"after.0: there is no job '{done}'; remove it"
    refused = otto.post("/v1/jobs", json={**SPEC, "after": [done]})
    assert (refused.status_code, problem) == (422, f"after.0: {refused.json()['problems'][0]['message']}")
    assert otto.post("/v1/plans", json={**SPEC, "after": [done]}).json()["warnings"][0].endswith(problem)
    later = olga.post("/v1/jobs", json={**SPEC, "after": [done]}).json()["id"]

    def dependents() -> list[str]:
        return [one["job_id"] for one in olga.get(f"/v1/jobs/{done}/lineage").json()["dependents"]]

    assert dependents() == [later]
    with world.database.write() as session:
        session.execute(sa.text(f"UPDATE jobs SET created_by = 'otto' WHERE id = '{later}'"))
    assert dependents() == []
    assert [one["name"] for one in otto.get(f"/v1/jobs/{later}/lineage").json()["prerequisites"]] == [None]
