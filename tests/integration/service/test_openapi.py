"""The description of the API, for people and for those who generate clients from it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.world import World
from trainyard.contract.resources import JobResource
from trainyard.contract.sweeps import SweepDetail


@pytest.fixture(scope="module")
def world(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all: the description takes a second to make, and is the same on every database."""
    folder = tmp_path_factory.mktemp("described")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    made = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state")
    yield made
    made.database.dispose()


@pytest.fixture(scope="module")
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


def test_requests_say_how_they_are_signed(operations: dict[str, dict[str, Any]]) -> None:
    for route, one in operations.items():
        path = route.split()[1]
        open_ = path in ("/livez", "/readyz", "/metrics")
        scheme = "workerToken" if path.startswith("/v1/attempts/") else "token"
        assert one["security"] == ([] if open_ else [{scheme: []}]), route


def test_no_parameter_can_be_null(operations: dict[str, dict[str, Any]]) -> None:
    for route, one in operations.items():
        for parameter in one.get("parameters", ()):
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), (route, parameter["name"])


def test_jobs_and_sweeps_come_with_examples_that_are_such(world: World) -> None:
    parts = world.app.openapi()["components"]["schemas"]
    JobResource.model_validate(parts["JobResource"]["example"])
    SweepDetail.model_validate(parts["SweepDetail"]["example"])


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, POST"),
        ("/v1/jobs/job_x", "DELETE, GET"),
        ("/v1/tokens/self", "GET"),
        ("/v1/jobs/job_x/export/files/a/b", "GET"),
    ],
)
def test_a_wrong_method_is_told_all_that_the_path_takes(world: World, path: str, allowed: str) -> None:
    answer = world.client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "query", ["jobs?after=", "jobs?created_after=0.5", "sweeps?after=job_1", "audit?after=7", "webhooks?after=x"]
)
def test_what_a_list_cannot_go_on_from_is_refused(world: World, query: str) -> None:
    assert world.client.get(f"/v1/{query}").status_code == 422


def test_an_attempt_beyond_all_numbers_is_refused(world: World) -> None:
    job_id = world.submit()
    assert world.client.get(f"/v1/jobs/{job_id}/script?attempt={10**30}").status_code == 422
