"""Submission of exactly the changes that a fix shows."""

from typing import Any

import pytest

from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

FAILURE = {"type": "DivergedError", "message": "the loss became NaN or infinite at step 5", "final": True}


def failed_job(world: World, *, checkpoint: int | None = None, **spec: Any) -> dict[str, Any]:
    """Return a job whose loss was not finite; its fix is a lower learning rate."""
    job = world.submit(**spec)
    worker = world.start(job)
    if checkpoint is not None:
        folder = world.app_state.run_layout(job).checkpoint(checkpoint).root
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"w")
        (folder / "manifest.json").write_text("{}")
        worker.checkpoint(checkpoint)
    worker.end("error", failure=FAILURE)
    world.tick()
    failed: dict[str, Any] = world.client.get(f"/v1/jobs/{job}").json()
    return failed


def request_of(fix: dict[str, Any]) -> dict[str, Any]:
    return {"changes": [{name: one[name] for name in ("field", "before", "after")} for one in fix["changes"]]}


def submit(world: World, job: str, body: dict[str, Any], **headers: str) -> Any:
    return world.client.post(f"/v1/jobs/{job}/changes", json=body, headers=headers)


def differing(one: Any, other: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = {*one, *other}
        parts = [differing(one.get(name), other.get(name), f"{path}.{name}".strip(".")) for name in names]
        return {key: value for part in parts for key, value in part.items()}
    return {} if one == other else {path: (one, other)}


@pytest.mark.parametrize("checkpoint", [None, 5])
def test_the_new_spec_differs_in_exactly_what_was_shown(world: World, checkpoint: int | None) -> None:
    source = failed_job(world, checkpoint=checkpoint)
    (fix, *_) = source["failure_summary"]["fixes"]
    made = submit(world, source["id"], request_of(fix))
    assert made.status_code == 201, made.json()
    changed = differing(source["spec"], made.json()["spec"])
    assert changed.pop("name") == (source["name"], f"{source['name']}-2")
    assert changed.pop("metadata.forked_from") == (None, source["id"])
    assert changed == {one["field"]: (one["before"], one["after"]) for one in fix["changes"]}
    assert "optimizer.lr" in changed
    origin = made.json()["origin"]
    assert (origin and origin["step"]) == checkpoint


def test_a_value_that_has_changed_meanwhile_is_a_conflict(world: World) -> None:
    source = failed_job(world)
    body = {"changes": [{"field": "resources.time_limit_minutes", "before": None, "after": 90}]}
    retry = {"resources": {"time_limit_minutes": 45}}
    assert world.client.post(f"/v1/jobs/{source['id']}/retry", json=retry).status_code == 202
    refused = submit(world, source["id"], body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_changed")
    assert "`resources.time_limit_minutes` is 45 and not absent" in refused.json()["error"]["message"]
    assert len(world.client.get("/v1/jobs").json()["data"]) == 1


def test_a_repeated_request_submits_once(world: World) -> None:
    source = failed_job(world)
    body = request_of(source["failure_summary"]["fixes"][0])
    first, second = (submit(world, source["id"], body, **{"Idempotency-Key": "once"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"field": "optimizer.lr", "before": 0.1, "after": "hot"}, "optimizer.lr"),
        ({"field": "no_field", "before": None, "after": 1}, "no_field"),
        ({"field": "__class__", "before": None, "after": 1}, None),
        ({"field": "x" * 300, "before": None, "after": 1}, None),
    ],
)
def test_a_changed_spec_is_validated_as_any_other(world: World, change: dict[str, Any], param: str | None) -> None:
    source = failed_job(world)
    if change["field"] == "optimizer.lr":
        change = {**change, "before": source["spec"]["optimizer"]["lr"]}
    refused = submit(world, source["id"], {"changes": [change]})
    assert refused.status_code == 422
    if param:
        assert refused.json()["problems"][0]["param"] == param
