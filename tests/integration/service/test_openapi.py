"""The description of the API, for people and for those who generate clients from it."""

from typing import Any

import pytest

from tests.support.world import World


@pytest.fixture
def operations(world: World) -> dict[str, dict[str, Any]]:
    paths = world.app.openapi()["paths"]
    return {f"{verb.upper()} {path}": one for path, verbs in paths.items() for verb, one in verbs.items()}


def test_every_route_says_what_it_does_under_a_name_of_its_own(operations: dict[str, dict[str, Any]]) -> None:
    for route, one in operations.items():
        assert one["summary"], route
        assert one["description"].endswith("."), route
    names = [one["operationId"] for one in operations.values()]
    assert len(names) == len(set(names))
    assert all(name.replace("_", "").isalnum() and name.islower() for name in names)


def test_every_route_says_how_it_fails(operations: dict[str, dict[str, Any]]) -> None:
    for route, one in operations.items():
        for status in ("401", "404", "409", "422", "503"):
            if status == "503" and route == "GET /readyz":
                continue
            content = one["responses"][status]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorEnvelope"}, route
            assert content["example"]["error"]["code"], route


def test_those_that_steer_and_save_are_there(operations: dict[str, dict[str, Any]]) -> None:
    job = "/v1/jobs/{job_id}"
    wanted = {
        *(f"POST {job}/{verb}" for verb in ("pause", "resume", "retry", "cancel")),
        *(f"GET {job}/checkpoints/{{checkpoint_id}}{rest}" for rest in ("", "/files", "/files/{path}", "/archive")),
        *(f"GET {job}/export/{rest}" for rest in ("files", "files/{path}", "archive")),
        *(f"DELETE {job}{rest}" for rest in ("", "/checkpoints/{checkpoint_id}")),
        "GET /v1/usage",
    }
    assert wanted <= set(operations)
