"""Unknown, repeated and malformed parameters are rejected in the same way on all routes."""

from typing import Any

import pytest

from tests.support.operations import BODIES, QUERIES
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def routes(world: World) -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of every route under /v1."""
    paths = world.app.openapi()["paths"]
    return [
        (verb.upper(), path, one)
        for path, verbs in paths.items()
        for verb, one in verbs.items()
        if path.startswith("/v1/")
    ]


def test_unknown_query_parameters_are_rejected_on_all_routes(
    world: World, routes: list[tuple[str, str, dict[str, Any]]]
) -> None:
    worker = world.start(world.submit())
    for method, path, operation in routes:
        client = worker.client if path.startswith("/v1/attempts/") else world.client
        address = path.replace("{aid}", worker.attempt_id).replace("{digest}", "sha256:" + "0" * 64)
        for name in ("job_id", "sweep_id", "token_id", "webhook_id", "name", "path"):
            address = address.replace(f"{{{name}}}", "any")
        answer = client.request(
            method,
            address.replace("{checkpoint_id}", "ckpt_" + "0" * 26).replace("{estimate_id}", "est_" + "0" * 26),
            params={"nonsens": "1"},
        )
        known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
        assert answer.status_code == 422, (method, path, answer.text)
        if method == "HEAD":
            continue
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", "nonsens"), (method, path)
        assert all(name in error["message"] for name in known), (method, path, error["message"])


def test_error_suggests_the_closest_parameter(world: World) -> None:
    def error_message(address: str) -> str:
        return str(world.client.get(address).json()["error"]["message"])

    assert "did you mean `status`?" in error_message("/v1/jobs?statsu=running")
    assert "did you mean `max_points`?" in error_message("/v1/metrics?job=job_x&maxpoints=10")
    assert error_message("/v1/usage?limit=2") == "unknown query parameter; this route takes none"
    assert "metadata[key]" in error_message("/v1/jobs?metadata=nlp")


def test_repeated_single_value_parameter_is_rejected(world: World) -> None:
    for address in ("name=a&name=b", "limit=1&limit=2", "metadata[team]=a&metadata[team]=b"):
        answer = world.client.get(f"/v1/jobs?{address}")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            422,
            "repeated_parameter",
            address.partition("=")[0],
        )
        assert error["message"] == "is repeated; it takes one value"
    several = "status=failed&status=lost&metadata[team]=a&metadata[kind]=b"
    assert world.client.get(f"/v1/jobs?{several}").status_code == 200
    assert world.client.get("/v1/metrics?job=job_x&job=job_y&keys=a&keys=b").json()["error"]["code"] == "job_not_found"


def test_parameters_are_checked_after_authentication(world: World) -> None:
    assert world.new_client(None).get("/v1/jobs?nonsense=1").status_code == 401


@pytest.mark.parametrize("nonsense", ["nonsense", "job_" + "0" * 25, "sha256:x", "%C3%A9", "x" * 300])
def test_malformed_ids_return_404(world: World, routes: list[tuple[str, str, dict[str, Any]]], nonsense: str) -> None:
    worker = world.start(world.submit())
    for method, path, operation in routes:
        name = operation["operationId"]
        # The name of a secret may be its value by mistake: the error quotes nothing and is a 422.
        if "{" not in path or "{secret_name}" in path:
            continue
        address = "/".join(nonsense if part.startswith("{") else part for part in path.split("/"))
        client = worker.client if path.startswith("/v1/attempts/") else world.client
        answer = client.request(method, address, json=BODIES.get(name, {"job_id": "job_x"}), params=QUERIES.get(name))
        assert answer.status_code == 404, (method, path, answer.text)
        if method != "HEAD":
            error = answer.json()["error"]
            assert (error["type"], error["code"].endswith("_not_found")) == ("not_found_error", True), (method, path)
            assert error["param"], (method, path)
