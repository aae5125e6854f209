"""No route, page or stream shows the jobs of a private project to a user who is not a member."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus

import httpx
import pytest
import sqlalchemy as sa

from service.db.models import Job, NodeFault, SavedView
from service.db.visibility import Reader, show_jobs_to
from service.streaming.broadcaster import StreamOffset
from service.streaming.sources import JobSource
from service.streaming.subscription import Subscription
from tests.support.operations import FILE_FORMS, FORMS, Operation, all_operations, request_for
from tests.support.seeds import Seeds, seed
from tests.support.world import SPEC, World

HERE = "http://localhost"
PROJECT = "Hidden Zoo"
JOB_PATHS = ("{job_id}", "{sweep_id}", "{model_name}", "{project}")
"""Parameters of paths that name what belongs to the project."""
MAY_CHANGE_NOTHING = ("sign_out", "revoke_own_token", *FORMS, *FILE_FORMS)
STREAMS = ("stream_job", "stream_jobs")


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    """Return a service whose jobs are all in a private project: `olga` is a member, `otto` and `vera` are not."""
    folder = tmp_path_factory.mktemp("private")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", rate_burst=10**6)
    seeds = seed(world)
    made = world.client.post("/v1/projects", json={"name": PROJECT, "visibility": "private", "description": "secret"})
    assert made.status_code == 201
    member = world.client.put(f"/v1/projects/{PROJECT}/members/olga", json={"role": "member"})
    assert member.status_code == 200
    view = {"name": "of the zoo", "shared": True, "project": PROJECT, "where": 'tag = "best animal"'}
    assert world.client.post("/v1/views", json=view).status_code == 201
    with world.database.write() as session:
        for table in ("jobs", "sweeps"):
            session.execute(sa.text(f"UPDATE {table} SET project = '{PROJECT}', created_by = 'oscar'"))
        job_id = session.scalars(sa.select(Job.id)).first()
        session.execute(sa.update(NodeFault).values(job_id=job_id))
    seeds.values["project"] = [PROJECT]
    del seeds.special["delete_project"]
    yield world, seeds
    world.database.dispose()


def markers(world: World) -> list[str]:
    """Return texts that no answer to others may have: the ids of jobs and sweeps, and the project's name."""
    with world.database.read() as session:
        ids = session.execute(sa.text("SELECT id FROM jobs UNION SELECT id FROM sweeps")).scalars().all()
        checkpoints = session.execute(sa.text("SELECT id FROM checkpoints")).scalars().all()
    return [*ids, *checkpoints, PROJECT, "best animal", "oscar"]


def send(client: Any, operation: Operation, seeds: Seeds) -> httpx.Response:
    request = request_for(operation, seeds, 1, {})
    headers = {"Content-Type": request.content_type, "Origin": HERE}
    url = f"{request.path}?{request.query}"
    answer: httpx.Response = client.request(request.method, url, content=request.body, headers=headers)
    return answer


@pytest.mark.parametrize(("name", "role"), [("otto", "user"), ("vera", "viewer")])
def test_jobs_of_the_project_do_not_exist(seeded: tuple[World, Seeds], name: str, role: Any) -> None:
    world, seeds = seeded
    unknown = Seeds(seeds.worker_token, {**seeds.values}, {})
    unknown.values |= {"model_name": ["unknown"], "project": ["unknown"]}
    for parameter in ("job_id", "sweep_id"):
        unknown.values[parameter] = [f"{seeds.values[parameter][0][:-8]}{number:08}" for number in range(3)]
    client, checked = world.new_user(role, name), 0
    operations = [one for one in all_operations(world) if any(part in one.path for part in JOB_PATHS)]
    for operation in [one for one in operations if one.path.startswith("/v1/") and "/attempts/{" not in one.path]:
        answer, expected = send(client, operation, seeds), send(client, operation, unknown)
        if operation.id == "register_model_version":
            assert answer.status_code in (403, 404, 409), operation
            continue
        assert answer.status_code == expected.status_code, operation
        assert answer.status_code in (403, 404), operation
        if operation.method != "HEAD":
            assert answer.json()["error"]["code"] == expected.json()["error"]["code"], operation
        checked += answer.status_code == 404
    assert checked > 30


def leaks(world: World, seeds: Seeds, client: Any, texts: list[str]) -> dict[str, list[str]]:
    """Return the texts in the answers to all reading operations, by operation."""
    result: dict[str, list[str]] = {}
    for operation in all_operations(world):
        searches = operation.id.startswith(("search_mlflow", "make_plan"))
        if operation.id in (*STREAMS, *MAY_CHANGE_NOTHING) or not (operation.safe or searches):
            continue
        request = request_for(operation, seeds, 1, {})
        answer = send(client, operation, seeds)
        sent = [text for text in texts if text in unquote(request.path) or text in unquote_plus(request.query)]
        repeated = sent if answer.status_code >= 400 else []
        if shown := [text for text in texts if text in answer.text and text not in repeated]:
            result[operation.id] = shown
    return result


def browser(world: World, name: str) -> Any:
    client = world.new_client(None)
    token = world.client.post("/v1/tokens", json={"name": name, "role": "user"}).json()["token"]
    client.post("/sign-in", data={"token": token}, headers={"Origin": HERE}, follow_redirects=False)
    return client


@pytest.mark.parametrize("kind", ["token", "browser"])
def test_no_answer_to_others_names_what_is_in_the_project(seeded: tuple[World, Seeds], kind: str) -> None:
    world, seeds = seeded
    texts = markers(world)

    def shown_to(name: str) -> dict[str, list[str]]:
        client = world.new_user("user", name) if kind == "token" else browser(world, name)
        return leaks(world, seeds, client, texts)

    echoes = shown_to("otto")
    # Pages of comparisons and searches repeat the ids that the address names.
    allowed = {seeds.values["job_id"][1]}
    assert {name: texts for name, texts in echoes.items() if set(texts) - allowed} == {}
    assert set(echoes) <= {"show_compare"}
    assert len(shown_to("olga")) > 25, "a member reads all of it"


LISTS = (
    *("/v1/jobs", "/v1/jobs?created_by=oscar", "/v1/jobs?search=running", "/v1/jobs?status=running&status=queued"),
    *("/v1/jobs?metadata[team]=nlp", "/v1/sweeps", "/v1/usage", f"/v1/jobs?project={PROJECT}"),
    *("/v1/jobs?where=seed = 0", "/v1/jobs?where=not (status = failed)&sort=name", "/v1/jobs?sort=-seed"),
    *("/v1/jobs?archived=only", "/v1/jobs?where=project ~ Zoo"),
)


@pytest.mark.parametrize("path", LISTS)
def test_lists_and_counts_leave_the_project_out(seeded: tuple[World, Seeds], path: str) -> None:
    world, _ = seeded
    answer = world.new_user("user", "otto").get(path)
    assert answer.status_code == 200
    assert answer.json().get("data", answer.json().get("users")) == []
    if "archived" not in path:
        assert world.new_user("user", "olga").get(path).json().get("data", [1])


def test_keys_and_suggestions_leave_the_project_out(seeded: tuple[World, Seeds]) -> None:
    client = seeded[0].new_user("user", "otto")
    assert {row["kind"] for row in client.get("/v1/job-keys").json()["data"]} == {"column"}
    assert "train/loss" not in client.get("/v1/jobs", params={"where": "train/los < 1"}).text
    assert client.get("/v1/jobs", params={"sort": "train/loss"}).status_code == 422
    params = {"sort": "seed", "after": seeded[1].values["job_id"][0]}
    assert client.get("/v1/jobs", params=params).status_code == 404


def test_a_job_of_the_project_starts_and_delays_no_job_of_others(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    done, otto, olga = seeds.values["job_id"][2], world.new_user("user", "otto"), world.new_user("user", "olga")
    fork = {**SPEC, "resume_from": done, "resume": "weights"}
    assert otto.post("/v1/jobs", json=fork).json()["error"]["code"] == "job_not_found"
    refused = otto.post("/v1/jobs", json={**SPEC, "after": [done]})
    assert (refused.status_code, refused.json()["problems"][0]["param"]) == (422, "after.0")
    later = olga.post("/v1/jobs", json={**SPEC, "after": [done]})
    assert later.status_code == 201, later.text
    # A job in the open that waits for one of the project does not name it.
    (prerequisite,) = otto.get(f"/v1/jobs/{later.json()['id']}/lineage").json()["prerequisites"]
    assert prerequisite["name"] is None


@pytest.mark.parametrize(
    "path", ["{runs}/{done}/export/data.jsonl", "{runs}/*/artifacts/x.jsonl", "{parent}/*/runs/{done}/export/x.jsonl"]
)
def test_results_in_run_directories_are_data_of_members_alone(seeded: tuple[World, Seeds], path: str) -> None:
    world, seeds = seeded
    runs, done = world.settings.runs, seeds.values["job_id"][2]
    world.settings.allowed_roots = world.app_state.settings.allowed_roots = (str(runs.parent.parent),)
    path = path.format(runs=runs, parent=runs.parent.parent, done=done)
    spec = {"version": 1, "name": "thief", "task": "causal_lm", "steps": 2, "batch": {"size": 2}}
    spec |= {"model": {"source": "hf", "path": f"{runs}/{done}/export"}, "data": {"source": "jsonl", "path": path}}
    for route in ("/v1/jobs", "/v1/plans", "/v1/plans/data"):
        answer = world.new_user("user", "otto").post(route, json=spec)
        assert answer.status_code == 422, answer.text
        problems = {one["param"]: one["message"] for one in answer.json()["problems"]}
        assert set(problems) == {"model.path", "data.path"}
        assert all("that you c" in message for message in problems.values())
    literal = {**spec, "data": {"source": "jsonl", "path": f"{runs}/{done}/export/data.jsonl"}}
    assert "that you c" not in world.new_user("user", "olga").post("/v1/jobs", json=literal).text


@pytest.mark.parametrize(("name", "reads"), [("olga", True), (None, True), ("otto", False)])
def test_streams_carry_the_project_to_its_members_alone(
    seeded: tuple[World, Seeds], name: str | None, reads: bool
) -> None:
    world, seeds = seeded

    async def subscribe(source: Any) -> Subscription:
        show_jobs_to(None if name is None else Reader(name))
        return Subscription(world.app_state.broadcaster, source, logs=True, owner="x")

    job = JobSource(world.database, world.settings.runs, world.clock, seeds.values["job_id"][1])
    for source in (world.app_state.global_source, job):
        subscription = asyncio.run(subscribe(source))
        items = [item for item in source.read(StreamOffset(0), True).items if item.project == PROJECT]
        assert items
        assert {item.readers for item in items} == {frozenset({"admin", "olga"})}
        assert len([item for item in items if subscription._accepts(item)]) == len(items) * reads


def test_a_removed_member_gets_no_further_message(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    url = f"/v1/projects/{PROJECT}/members/oleg"
    assert world.client.put(url, json={"role": "viewer"}).status_code == 200
    client, job = world.new_user("user", "oleg"), seeds.values["job_id"][1]
    assert client.get(f"/v1/jobs/{job}").status_code == 200

    async def subscribe() -> Subscription:
        show_jobs_to(Reader("oleg"))
        return Subscription(world.app_state.broadcaster, source, logs=False, owner="x")

    source = JobSource(world.database, world.settings.runs, world.clock, job)
    subscription = asyncio.run(subscribe())
    assert all(subscription._accepts(item) for item in source.read(StreamOffset(0), False).items)
    assert client.delete(url).status_code == 204, "members remove themselves"
    assert client.get(f"/v1/jobs/{job}").status_code == 404
    assert not any(subscription._accepts(item) for item in source.read(StreamOffset(0), False).items)


def test_a_view_of_the_project_is_hidden_with_it(seeded: tuple[World, Seeds]) -> None:
    world, _ = seeded
    with world.database.read() as session:
        view = session.scalars(sa.select(SavedView.id).where(SavedView.project == PROJECT)).one()
    for name, names in (("otto", []), ("olga", ["of the zoo"])):
        client = world.new_user("user", name)
        rows = [row["name"] for row in client.get("/v1/views?limit=200").json()["data"] if row["id"] == view]
        assert rows == names
    foreign = world.new_user("user", "otto").post("/v1/views", json={"name": "mine", "project": PROJECT.upper()})
    assert foreign.json()["error"]["code"] == "project_member_required"


def test_models_of_the_project_are_hidden_and_their_names_taken(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    (model,) = seeds.values["model_name"]
    otto = world.new_user("user", "otto")
    assert otto.get(f"/v1/models/{model}").status_code == 404
    assert otto.get("/v1/models").json()["data"] == []
    assert world.new_user("user", "olga").get(f"/v1/models/{model}").status_code == 200
