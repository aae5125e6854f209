"""What the service answers to those who get into a running job, and whom it refuses."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.db.models import Job
from tests.support.munge import FakeAccounts
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")

SHELL = {"kind": "shell", "rank": 1}
EXEC = {"kind": "exec", "program": "nvidia-smi"}


def enter(world: World, job: str, body: Any = EXEC, client: Any = None) -> Any:
    return (client or world.client).post(f"/v1/jobs/{job}/access", json=body)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    made = World(database_url, tmp_path / "state", backend="slurm")
    yield made
    made.database.dispose()


@pytest.fixture
def job(world: World) -> str:
    """A running job with one rank on each of two nodes; torchrun numbered them in another order."""
    made = world.submit(gpus=2, strategy="ddp", resources={"gpus_per_node": 1})
    world.start(made)
    for node, rank in ((0, 1), (1, 0)):
        write_placement(world, made, node, {"node": f"node{node + 1}", "ranks": [rank]})
    return made


def write_placement(world: World, job: str, node: int, document: Any) -> None:
    world.folder(job).placement(node).write_text(json.dumps(document))


def test_command_on_all_nodes_and_a_shell_on_that_of_the_rank(world: World, job: str) -> None:
    answer = enter(world, job).json()
    folder = str(world.folder(job).root)
    assert answer["nodes"] == [{"name": "node1", "ranks": [1]}, {"name": "node2", "ranks": [0]}]
    assert (answer["uid"], answer["folder"], answer["attempt"]) == (os.getuid(), folder, 1)
    assert answer["command"][-4:] == ["-P", "-m", "worker.environment.companion", folder]
    assert enter(world, job, SHELL).json()["nodes"] == [{"name": "node1", "ranks": [1]}]
    token = world.folder(job).token.read_text().strip()
    assert token not in enter(world, job).text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")
def test_account_of_a_job_that_runs_as_its_owner(world: World, job: str) -> None:
    world.app_state.accounts = FakeAccounts({"ada": 4711})
    run = world.app_state.run_layout(job).root
    for path in (run, *run.rglob("*")):
        os.chown(path, 4711, -1)
    with world.database.write() as session:
        session.query(Job).update({"unix_uid": 4711})
    answer = enter(world, job).json()
    assert (answer["account"], answer["uid"]) == ("ada", 4711)


def test_owner_and_administrators_with_the_code_role_may_enter(world: World) -> None:
    owner, other = world.new_user("user", "owner"), world.new_user("user", "other")
    made = owner.post("/v1/jobs", json=SPEC).json()
    assert code(enter(world, made["id"], client=owner)) == (403, "code_role_required")
    world.settings.__dict__["code_roles"] = ("admin", "user")
    assert code(enter(world, made["id"], client=other)) == (403, "forbidden")
    assert code(enter(world, made["id"], client=owner)) == (409, "job_not_running")
    assert code(enter(world, made["id"])) == (409, "job_not_running")
    assert code(enter(world, made["id"], client=world.new_user("viewer", "viewer")))[0] == 403
    assert code(enter(world, "job_01kdvdna00az9cxjnszk8v8abh")) == (404, "job_not_found")


def test_job_that_does_not_run_is_refused(world: World, job: str) -> None:
    queued = world.submit()
    assert code(enter(world, queued)) == (409, "job_not_running")
    assert "has status queued" in enter(world, queued).json()["error"]["message"]
    world.worker(job).finish("completed")
    world.scheduler.set_states("ended")
    world.tick()
    assert code(enter(world, job)) == (409, "job_not_running")


def test_rank_outside_of_the_job_is_refused(world: World, job: str) -> None:
    answer = enter(world, job, {"kind": "shell", "rank": 2})
    assert code(answer) == (422, "unknown_rank")
    assert answer.json()["error"]["param"] == "rank"


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "shell"},
        {"kind": "exec"},
        {"kind": "shell", "rank": 0, "program": "x"},
        {"kind": "exec", "program": "a\nb"},
        {"kind": "exec", "program": "x" * 513},
        {"kind": "exec", "program": "x", "argv": ["secret"]},
        {"kind": "shell", "rank": -1},
        {"kind": "shell", "rank": True},
    ],
)
def test_malformed_request_is_refused(world: World, job: str, body: Any) -> None:
    assert enter(world, job, body).status_code == 422


MADE_UP = [
    {"node": "-x", "ranks": [0]},
    {"node": "a b", "ranks": [0]},
    {"node": "a\n", "ranks": [0]},
    {"node": "node2", "ranks": [2]},
    {"node": "node2", "ranks": [True]},
    {"node": "node2", "ranks": "0"},
    {"node": 2, "ranks": [0]},
    ["node2"],
    {"node": "n" * 100_000, "ranks": [0]},
]


def test_placement_that_the_job_made_up_is_ignored(world: World, job: str, subtests: pytest.Subtests) -> None:
    for document in MADE_UP:
        with subtests.test(document=str(document)[:40]):
            write_placement(world, job, 1, document)
            assert code(enter(world, job)) == (409, "ranks_not_started")
            assert enter(world, job, SHELL).status_code == 200


def test_placement_that_is_a_link_is_not_followed(world: World, job: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('{"node": "node2", "ranks": [0]}')
    path = world.folder(job).placement(1)
    path.unlink()
    path.symlink_to(other)
    assert code(enter(world, job)) == (409, "ranks_not_started")


def test_ranks_that_have_not_started(world: World, job: str) -> None:
    for node in (0, 1):
        world.folder(job).placement(node).unlink()
    answer = enter(world, job, SHELL)
    assert code(answer) == (409, "ranks_not_started")
    assert f"trainyard logs {job} --rank launch" in answer.json()["error"]["message"]


def test_each_use_is_in_the_audit(world: World, job: str) -> None:
    enter(world, job, {**EXEC, "rank": 0})
    enter(world, job, SHELL)
    enter(world, job, client=world.new_user("user", "ada"))
    entries = [one for one in world.client.get("/v1/audit").json()["data"] if one["action"] == "enter_job"]
    assert [(one["actor"], one["target"], one["outcome"], one["detail"]) for one in entries] == [
        ("ada", job, "refused", {}),
        ("admin", job, "done", SHELL),
        ("admin", job, "done", {**EXEC, "rank": 0}),
    ]
