"""Saved views of the runs table: own and shared ones, names and limits."""

from typing import Any

import pytest

from service.views import service as views
from tests.support.world import World


def save(world: World, status: int = 201, **view: Any) -> dict[str, Any]:
    answer = world.client.post("/v1/views", json=view)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def names(client: Any) -> list[str]:
    return [view["name"] for view in client.get("/v1/views").json()["data"]]


def test_views_keep_what_they_show_and_are_shared_on_request(world: World) -> None:
    saved = save(world, name="best", where="eval/loss < 2", sort="eval/loss", columns=["name", "seed"], page="pin=name")
    assert (saved["where"], saved["columns"], saved["shared"]) == ("eval/loss < 2", ["name", "seed"], False)
    other = world.new_user("user", "other")
    assert names(world.client) == ["best"]
    assert names(other) == []
    path = f"/v1/views/{saved['id']}"
    assert other.put(path, json={"name": "x"}).status_code == 404
    assert world.client.put(path, json={"name": "better", "shared": True}).json()["where"] == ""
    assert names(other) == ["better"]
    assert other.put(path, json={"name": "x"}).status_code == 403
    assert other.delete(path).status_code == 403
    assert world.client.delete(path).status_code == 204
    assert world.client.delete(path).status_code == 404


def test_names_are_unique_per_user_and_views_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_VIEWS", 2)
    first = save(world, name="one")
    assert save(world, 409, name="one")["error"]["code"] == "view_exists"
    save(world, name="two")
    assert save(world, 409, name="three")["error"]["code"] == "too_many_views"
    assert world.client.put(f"/v1/views/{first['id']}", json={"name": "two"}).status_code == 409
    assert world.new_user("user", "other").post("/v1/views", json={"name": "one"}).status_code == 201
    assert world.new_user("viewer", "reader").post("/v1/views", json={"name": "one"}).status_code == 403


def test_keys_for_completion_have_columns_fields_and_tags(world: World) -> None:
    job = world.submit()
    world.client.patch(f"/v1/jobs/{job}", json={"tags": {"baseline": ""}})
    rows = world.client.get("/v1/job-keys").json()["data"]
    kinds = {row["key"]: row["kind"] for row in rows}
    assert kinds["status"] == "column"
    assert kinds["optimizer.lr"] == "spec"
    assert kinds["tags.baseline"] == "tag"
