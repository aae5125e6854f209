"""Specs name uploaded files by id; jobs read them by digest."""

import json
import os
from typing import Any

import pytest

from tests.integration.service.files.test_files import LINES, age, stored, upload
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

SPEC = {
    "version": 1,
    "name": "uploaded",
    "task": "causal_lm",
    "strategy": "single",
    "precision": "fp32",
    "model": {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16},
    "steps": 2,
    "batch": {"size": 2},
}
CHAT = json.dumps({"messages": [{"role": "assistant", "content": "yes"}]}).encode()


def submit(client: Any, data: dict[str, Any], **changes: Any) -> Any:
    return client.post("/v1/jobs", json={**SPEC, "data": {"source": "file", **data}, **changes})


def test_id_becomes_id_and_digest_at_submission(world: World) -> None:
    training, evaluation = upload(world.client), upload(world.client, LINES * 2)
    answer = submit(world.client, {"id": training["id"], "eval_id": evaluation["id"]})
    assert answer.status_code == 201, answer.text
    data = answer.json()["spec"]["data"]
    assert (data["id"], data["digest"], data["format"]) == (training["id"], training["digest"], "text")
    assert data["eval_digest"] == evaluation["digest"]


@pytest.mark.parametrize(
    ("changes", "param", "reason"),
    [
        ({"id": "file_" + "0" * 26}, "data.id", "no file that you can read"),
        ({"id": "/etc/passwd"}, "data.id", "must be the id of an uploaded file"),
        ({"digest": "sha256:" + "0" * 64}, "data.digest", "is not the digest"),
        ({"eval_id": "file_" + "0" * 26}, "data.eval_id", "no file that you can read"),
    ],
)
def test_unusable_file_is_refused_with_its_field(
    world: World, changes: dict[str, Any], param: str, reason: str
) -> None:
    answer = submit(world.client, {"id": upload(world.client)["id"], **changes})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert reason in answer.json()["error"]["message"]


def test_format_of_the_file_must_fit_the_spec(world: World) -> None:
    chat = upload(world.client, CHAT)
    answer = submit(world.client, {"id": chat["id"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "data.format")
    answer = submit(world.client, {"id": upload(world.client)["id"]}, objective="dpo")
    assert "objective `dpo` needs" in answer.json()["error"]["message"]
    answer = submit(world.client, {"id": upload(world.client)["id"], "eval_id": chat["id"]})
    assert answer.json()["error"]["param"] == "data.eval_id"


def test_sources_and_evaluation_sets_are_pinned_each(world: World) -> None:
    first, second, third = (upload(world.client, LINES * count) for count in (1, 2, 3))
    chat = upload(world.client, CHAT)
    sets = {"held": {"source": "file", "id": third["id"]}}
    sources = [{"source": "file", "id": first["id"], "weight": 2}, {"source": "file", "id": second["id"]}]
    answer = submit(world.client, {"source": "mixture", "sources": sources, "eval_sets": sets})
    assert answer.status_code == 201, answer.text
    data = answer.json()["spec"]["data"]
    assert [source["digest"] for source in data["sources"]] == [first["digest"], second["digest"]]
    assert {(one["digest"], one["format"]) for one in data["eval_sets"].values()} == {(third["digest"], "text")}
    single = submit(world.client, {"id": first["id"], "eval_sets": sets}).json()["spec"]["data"]
    assert (single["digest"], single["eval_sets"]["held"]["digest"]) == (first["digest"], third["digest"])
    for changed, param in (
        ({"sources": [sources[0], {**sources[1], "id": "file_" + "0" * 26}]}, "data.sources.1.id"),
        ({"sources": [{**sources[1], "digest": third["digest"]}]}, "data.sources.0.digest"),
        ({"sources": [{**sources[1], "id": chat["id"]}]}, "data.sources.0.format"),
        ({"sources": [{**sources[1], "wieght": 1}]}, "data.sources.0.wieght"),
        ({"sources": [{"source": "file"}]}, "data.sources.0.id"),
        ({"sources": sources, "eval_sets": {"held": {**sets["held"], "id": "x"}}}, "data.eval_sets.held.id"),
        (
            {"sources": sources, "eval_sets": {"held": {"source": "file", "id": chat["id"]}}},
            "data.eval_sets.held.format",
        ),
    ):
        error = submit(world.client, {"source": "mixture", **changed}).json()["error"]
        assert error["param"] == param, error
        assert param != "data.sources.0.wieght" or "did you mean `data.sources.0.weight`" in error["message"]


def test_contents_of_all_sources_stay_while_a_job_needs_them(world: World) -> None:
    made = [upload(world.client, LINES * count) for count in (1, 2, 3)]
    sources = [{"source": "file", "id": one["id"]} for one in made[:2]]
    sets = {"held": {"source": "file", "id": made[2]["id"]}}
    submit(world.client, {"source": "mixture", "sources": sources, "eval_sets": sets})
    for one in made:
        world.client.delete(f"/v1/files/{one['id']}")
    age(world)
    world.run_maintenance()
    assert len(stored(world)) == 3


def test_plan_and_sweep_read_the_files_of_each_member(world: World) -> None:
    first, second = upload(world.client), upload(world.client, LINES * 2)
    spec = {**SPEC, "data": {"source": "file", "id": first["id"]}}
    plan = world.client.post("/v1/plans", json=spec)
    assert plan.json()["spec"]["data"]["digest"] == first["digest"]
    grid = {"spec": spec, "grid": {"data.id": [first["id"], second["id"]]}}
    sweep = world.client.post("/v1/sweeps", json=grid)
    assert sweep.status_code == 201, sweep.text
    digests = [world.job(member["job_id"])["spec"]["data"]["digest"] for member in sweep.json()["members"]]
    assert digests == [first["digest"], second["digest"]]
    missing = {"spec": spec, "grid": {"data.id": [first["id"], "file_" + "0" * 26]}}
    error = world.client.post("/v1/sweeps", json=missing).json()["error"]
    assert error["param"] == "members.1.data.id"


def test_content_stays_while_an_unfinished_job_uses_it(world: World) -> None:
    made = upload(world.client)
    job_id = submit(world.client, {"id": made["id"]}).json()["id"]
    assert world.client.delete(f"/v1/files/{made['id']}").status_code == 204
    age(world)
    world.run_maintenance()
    assert len(stored(world)) == 1
    world.client.post(f"/v1/jobs/{job_id}/cancel")
    world.tick()
    assert world.status(job_id) == "cancelled"
    world.run_maintenance()
    assert stored(world) == []


def test_missing_content_is_refused_at_submission(world: World) -> None:
    made = upload(world.client)
    for path in (world.settings.runs / "files").iterdir():
        os.unlink(path)
    answer = submit(world.client, {"id": made["id"]})
    assert "content is missing" in answer.json()["error"]["message"]
    assert world.client.get(f"/v1/files/{made['id']}/content").json()["error"]["code"] == "file_content_not_found"


def test_labelled_texts_are_uploaded_planned_and_submitted(world: World) -> None:
    lines = b"".join(json.dumps({"text": "a day", "label": label}).encode() + b"\n" for label in ("good", "bad", 3))
    made = upload(world.client, lines)
    assert (made["format"], made["examples"]) == ("labelled_text", 3)
    model = {"source": "hf", "path": str(world.settings.runs / "base-model")}
    changes = {"task": "sequence_classification", "model": model}
    answer = submit(world.client, {"id": made["id"], "eval_id": made["id"]}, **changes)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["data"]["format"] == "labelled_text"
    spec = {**SPEC, **changes, "data": {"source": "file", "id": made["id"]}}
    plan = world.client.post("/v1/plans", json=spec)
    assert plan.status_code == 200, plan.text
    assert "cannot be read" in plan.json()["unknown"]  # There is no such folder.
    answer = submit(world.client, {"id": made["id"]})
    assert answer.json()["error"]["param"] == "data.format"
    answer = submit(world.client, {"id": upload(world.client)["id"]}, **changes)
    assert answer.json()["error"]["message"] == "is `text`, and task `sequence_classification` needs `labelled_text`"
