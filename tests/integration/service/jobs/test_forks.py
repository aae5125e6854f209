"""Forks: rejected changes, retained checkpoints, and the launch document."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import SPEC, World
from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.launch import LaunchDocument

pytestmark = pytest.mark.databases("sqlite")

WIDE = {"source": "builtin", "name": "mlp", "sizes": [2, 4, 3]}


@pytest.fixture
def source(world: World) -> str:
    """A running job with checkpoints of steps 5 and 10."""
    job = world.submit()
    worker = world.start(job)
    for step in (5, 10):
        folder = world.app_state.run_layout(job).checkpoint(step).root
        (folder / "inner").mkdir(parents=True)
        (folder / "weights").write_bytes(b"w" * step)
        (folder / "inner" / "moments").write_bytes(b"m")
        (folder / "planted").symlink_to("/etc/passwd")
        (folder / "manifest.json").write_text("{}")
        worker.checkpoint(step)
    return job


def fork(world: World, origin: str, **changes: Any) -> Any:
    return world.client.post("/v1/jobs", json={**SPEC, "resume_from": origin, **changes})


def run_of(world: World, job: str) -> RunLayout:
    return world.app_state.run_layout(job)


@pytest.mark.databases("sqlite", "postgres")
def test_fork_without_a_step_starts_from_the_latest_checkpoint(world: World, source: str) -> None:
    made = fork(world, source).json()
    assert made["spec"]["resume_from"] == f"{source}:10"
    assert made["origin"] == {"job_id": source, "step": 10, "continues": True, "differs": [], "layout_differs": []}
    folder = run_of(world, made["id"]).origin(10).root
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "inner/moments",
        "manifest.json",
        "weights",
    ]
    assert os.path.samefile(folder / "weights", run_of(world, source).checkpoint(10).root / "weights")
    events = world.client.get(f"/v1/jobs/{made['id']}/events").json()["data"]
    assert "exact continuation" in next(event for event in events if event["type"] == "forked")["message"]


def test_fork_keeps_the_checkpoint_after_the_source_is_deleted(world: World, source: str) -> None:
    made = fork(world, f"{source}:5").json()
    shutil.rmtree(run_of(world, source).root)
    assert (run_of(world, made["id"]).origin(5).root / "weights").read_bytes() == b"wwwww"


def test_launch_document_contains_the_origin(world: World, source: str) -> None:
    made = fork(world, f"{source}:5", optimizer={"lr": 0.5}).json()
    world.tick()
    launch = LaunchDocument.model_validate_json(world.folder(made["id"]).launch.read_bytes())
    assert launch.origin is not None
    assert (launch.origin.step, launch.origin.continues, launch.origin.differs) == (5, True, ("optimizer.lr",))


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"strategy": "ddp", "gpus": 4, "log": {"every_steps": 1}, "checkpoint": {"every_steps": 2}}, []),
        ({"steps": 40}, []),
        ({"steps": 40, "schedule": {"name": "cosine"}}, ["schedule", "steps"]),
        ({"precision": "bf16"}, ["precision"]),
        (
            {"optimizer": {"lr": 0.5, "clip_norm": 1, "weight_decay": 0.1}},
            ["optimizer.lr", "optimizer.weight_decay", "optimizer.clip_norm"],
        ),
    ],
)
def test_adjusted_fields_keep_state_and_position(
    world: World, source: str, changes: dict[str, Any], differs: list[str]
) -> None:
    made = fork(world, source, **changes).json()
    assert (made["origin"]["continues"], made["origin"]["differs"]) == (True, differs), made


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"batch": {"size": 20}, "seed": 3}, ["batch.size", "seed"]),
        ({"optimizer": {"name": "sgd"}}, ["optimizer.name"]),
        ({"data": {"source": "builtin", "name": "parity", "examples": 50}}, ["data.examples"]),
    ],
)
def test_other_fields_need_resume_weights(
    world: World, source: str, changes: dict[str, Any], params: list[str]
) -> None:
    refused = fork(world, source, **changes)
    assert refused.status_code == 422
    problems = refused.json()["problems"]
    assert [problem["param"] for problem in problems] == params
    assert all("set `resume: weights`" in problem["message"] for problem in problems)
    made = fork(world, source, resume="weights", **changes).json()
    assert (made["origin"]["continues"], made["origin"]["differs"]) == (False, params)


def test_resume_weights_starts_at_the_first_step_of_any_length(world: World, source: str) -> None:
    made = fork(world, source, resume="weights", steps=3).json()
    assert made["origin"] == {"job_id": source, "step": 10, "continues": False, "differs": [], "layout_differs": []}


@pytest.mark.parametrize(
    ("named", "changes", "status", "param", "message"),
    [
        ("job_" + "0" * 26, {}, 422, "resume_from", "there is no job"),
        ("{source}:7", {}, 422, "resume_from", "available steps: 5, 10"),
        ("../../etc", {}, 422, "resume_from", "must be `<job id>` or"),
        ("{source}:x", {}, 422, "resume_from", "must be `<job id>` or"),
        (
            "{source}",
            {"model": WIDE},
            422,
            "model.sizes",
            "not fit",
        ),
        ("{source}", {"trainable": ["*.weight"]}, 422, "trainable", "not fit"),
        ("{source}", {"steps": 10}, 422, "steps", "no steps remain"),
    ],
)
def test_impossible_forks_are_rejected_at_submission(
    world: World, source: str, named: str, changes: dict[str, Any], status: int, param: str, message: str
) -> None:
    refused = fork(world, named.format(source=source), **changes)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert message in refused.json()["error"]["message"]
    assert [path.name for path in world.settings.runs.iterdir()] == [source], "nothing is left behind"


def test_source_without_a_checkpoint_is_rejected(world: World) -> None:
    refused = fork(world, world.submit())
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_checkpoint")


def test_checkpoint_missing_on_disk_is_a_conflict(world: World, source: str) -> None:
    (run_of(world, source).checkpoint(10).manifest).unlink()
    refused = fork(world, source)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoint_gone")
    assert [path.name for path in world.settings.runs.iterdir()] == [source]


@pytest.mark.databases("sqlite", "postgres")
def test_replayed_fork_ignores_newer_checkpoints(world: World, source: str) -> None:
    spec, key = {**SPEC, "resume_from": source}, {"Idempotency-Key": "one"}
    first = world.client.post("/v1/jobs", json=spec, headers=key).json()
    folder: Path = run_of(world, source).checkpoint(15).root
    shutil.copytree(run_of(world, source).checkpoint(10).root, folder, symlinks=True)
    world.worker(source).checkpoint(15)
    again = world.client.post("/v1/jobs", json=spec, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, first["id"])
    assert len(list(world.settings.runs.iterdir())) == 2
    shutil.rmtree(run_of(world, source).root)
    assert world.client.post("/v1/jobs", json=spec, headers=key).json()["id"] == first["id"]


def test_checkpoint_from_before_a_retry_from_scratch_is_rejected(world: World, source: str) -> None:
    world.worker(source).end("rejected", failure={"type": "ValueError", "message": "bad"})
    world.tick()
    world.client.post(f"/v1/jobs/{source}/retry", json={"from": "scratch"})
    assert fork(world, source).json()["error"]["code"] == "no_checkpoint"


@pytest.mark.fault_scenario(56)
def test_fork_with_another_number_of_ranks_is_equal_to_rounding(world: World, source: str) -> None:
    made = fork(world, source, gpus=1).json()
    assert (made["origin"]["continues"], "gpus" in made["origin"]["layout_differs"]) == (True, True)
    events = world.client.get(f"/v1/jobs/{made['id']}/events").json()["data"]
    message = next(event for event in events if event["type"] == "forked")["message"]
    assert "equal to rounding, not to the last digit; changed: gpus" in message
