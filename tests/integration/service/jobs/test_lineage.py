"""Lineage of a job: ancestors, forks, data, base and registered models."""

from typing import Any

import pytest

from service.jobs import lineage
from service.jobs.lineage import used_data
from tests.support.world import SPEC, World

pytestmark = pytest.mark.databases("sqlite")


def ended(world: World, **changes: Any) -> str:
    """A job that ended with a checkpoint of step 5."""
    job = world.submit(**changes)
    save(world, job)
    return job


def save(world: World, job: str) -> None:
    folder = world.app_state.run_layout(job).checkpoint(5).root
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w")
    (folder / "manifest.json").write_text("{}")
    worker = world.start(job)
    worker.checkpoint(5)
    worker.end("completed")
    world.tick()


def fork(world: World, origin: str, **changes: Any) -> str:
    answer = world.client.post("/v1/jobs", json={**SPEC, "resume_from": f"{origin}:5", **changes})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(world: World, job: str) -> Any:
    answer = world.client.get(f"/v1/jobs/{job}/lineage")
    assert answer.status_code == 200
    return answer.json()


def test_forks_know_their_ancestors_and_ancestors_their_forks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ended(world, name="first")
    second = fork(world, first, name="second", resume="weights")
    other = fork(world, first, name="other")
    save(world, second)
    third = fork(world, second, name="third")
    assert [(one["name"], one["step"], one["continues"]) for one in read(world, third)["ancestors"]] == [
        ("second", 5, True), ("first", 5, False),
    ]  # fmt: skip
    assert [(one["job_id"], one["status"]) for one in read(world, first)["forks"]] == [
        (second, world.status(second)), (other, "queued"),
    ]  # fmt: skip
    assert read(world, other)["forks"] == []
    monkeypatch.setattr(lineage, "MAX_FORKS", 1)
    result = read(world, first)
    assert ([one["job_id"] for one in result["forks"]], result["has_more_forks"]) == ([second], True)
    assert world.client.delete(f"/v1/jobs/{first}").status_code == 204
    assert [one["name"] for one in read(world, third)["ancestors"]] == ["second", None]


def test_copy_of_a_spec_knows_the_job_it_was_forked_from(world: World) -> None:
    first = ended(world, name="first")
    copied = world.submit(name="copied", metadata={"forked_from": first})
    assert [(one["name"], one["step"]) for one in read(world, copied)["ancestors"]] == [("first", None)]
    assert [(one["job_id"], one["step"]) for one in read(world, first)["forks"]] == [(copied, None)]


@pytest.mark.databases("sqlite", "postgres")
def test_registered_models_are_shown_by_their_job_and_its_forks(world: World) -> None:
    job = ended(world, name="base")
    body = {"job_id": job, "checkpoint": 5}
    made = world.client.post("/v1/models/digits/versions", json=body)
    assert made.status_code == 201, made.text
    version = {"model": "digits", "version": 1, "step": 5}
    assert read(world, job)["versions"] == [version]
    assert read(world, fork(world, job))["base_versions"] == [version]


@pytest.mark.databases("sqlite", "postgres")
def test_jobs_know_for_which_others_they_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ended(world, name="first")
    second = world.submit(name="second", after=[f"{first}:ended"])
    third = world.submit(name="third", after=[second, first])
    assert [(one["name"], one["status"], one["any_end"]) for one in read(world, third)["prerequisites"]] == [
        ("first", "succeeded", False), ("second", "queued", False),
    ]  # fmt: skip
    dependents = read(world, first)["dependents"]
    assert [(one["job_id"], one["any_end"]) for one in dependents] == [(second, True), (third, False)]
    monkeypatch.setattr(lineage, "MAX_FORKS", 1)
    assert (len(read(world, first)["dependents"]), read(world, first)["has_more_dependents"]) == (1, True)
    assert world.client.delete(f"/v1/jobs/{first}").status_code == 204
    assert [(one["job_id"], one["name"]) for one in read(world, second)["prerequisites"]] == [(first, None)]


def test_unknown_job_has_no_lineage(world: World) -> None:
    assert world.client.get("/v1/jobs/job_none/lineage").status_code == 404


def test_data_of_mixtures_is_listed_by_part() -> None:
    mixture = {
        "source": "mixture",
        "sources": [
            {"source": "jsonl", "path": ["/data/a", "/data/b"], "name": "of the set"},
            {"source": "file", "id": "file_1", "digest": "sha256:x", "weight": 2},
        ],
        "eval_sets": [{"source": "file", "id": "file_2"}],
    }
    result = [(one.field, one.source, one.text, one.file_id, one.digest) for one in used_data({"data": mixture})]
    assert result == [
        ("data.sources.0.path", "jsonl", "/data/a", None, None),
        ("data.sources.0.path", "jsonl", "/data/b", None, None),
        ("data.sources.1.id", "file", "file_1", "file_1", "sha256:x"),
        ("data.eval_sets.0.id", "file", "file_2", "file_2", None),
    ]
    assert [one.text for one in used_data({"data": {"source": "builtin", "name": "digits"}})] == ["digits"]


@pytest.mark.parametrize("data", [None, "text", [[[[[[[[[[{"id": "deep"}]]]]]]]]]], {"id": 7, "path": {"x": 1}}])
def test_odd_specs_have_no_data(data: Any) -> None:
    assert used_data({"data": data}) == []
