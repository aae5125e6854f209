"""The OpenAPI document."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi.responses import JSONResponse

from service.api.app import _RESOURCES
from service.api.middleware.authentication import SIGN_IN_PATHS
from tests.support.world import SPEC, World
from trainyard.contract.validation_messages import PATTERN_MESSAGES, RANK_PATTERN


@pytest.fixture(scope="module")
def world(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return one world for all tests, since building the document takes a second."""
    folder = tmp_path_factory.mktemp("described")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    made = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state")
    yield made
    made.database.dispose()


@pytest.fixture(scope="module")
def operations(world: World) -> dict[str, dict[str, Any]]:
    paths = world.app.openapi()["paths"]
    return {f"{verb.upper()} {path}": one for path, verbs in paths.items() for verb, one in verbs.items()}


def test_routes_have_descriptions_and_unique_operation_ids(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        assert " " in operation["summary"], route
        assert len(operation["summary"]) <= 80, route
        assert operation["description"].endswith("."), route
    names = [operation["operationId"] for operation in operations.values()]
    assert len(names) == len(set(names))
    assert all(name.replace("_", "").isalnum() and name.islower() for name in names)


def test_path_parameters_name_their_resource(operations: dict[str, dict[str, Any]]) -> None:
    """The error for a malformed id names the resource; `name` and `path` are never malformed."""
    for route in operations:
        for parameter in re.findall(r"\{(.*?)\}", route):
            assert parameter.endswith("_id") or parameter in {*_RESOURCES, "name", "path"}, route


def test_routes_document_their_error_responses(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        for status in ("401", "404", "409", "422", "503"):
            if status == "503" and route == "GET /readyz":
                continue
            content = operation["responses"][status]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorEnvelope"}, route
            assert content["example"]["error"]["code"], route


def test_response_headers_are_documented(world: World, operations: dict[str, dict[str, Any]]) -> None:
    # Those of HTTP itself; clients handle the encoding before anyone sees the answer.
    usual = {"content-length", "content-type", "content-encoding", "vary", "x-content-type-options"}
    key = {"Idempotency-Key": "twice"}
    for route, status in (("POST /v1/jobs", 201), ("POST /v1/jobs", 201), ("GET /v1/jobs", 200), ("GET /livez", 200)):
        method, path = route.split()
        answer = world.client.request(method, path, json=SPEC if method == "POST" else None, headers=key)
        assert answer.status_code == status
        announced = operations[route]["responses"][str(status)]["headers"]
        assert set(answer.headers) - usual <= {name.lower() for name in announced}, route


def test_document_contains_control_and_checkpoint_routes(operations: dict[str, dict[str, Any]]) -> None:
    job = "/v1/jobs/{job_id}"
    required = {
        *(f"POST {job}/{verb}" for verb in ("pause", "resume", "retry", "cancel")),
        *(f"GET {job}/checkpoints/{{checkpoint_id}}{rest}" for rest in ("", "/files", "/files/{path}", "/archive")),
        *(f"GET {job}/export/{rest}" for rest in ("files", "files/{path}", "archive")),
        *(f"DELETE {job}{rest}" for rest in ("", "/checkpoints/{checkpoint_id}")),
        "GET /v1/usage",
    }
    assert required <= set(operations)


def test_routes_document_their_security_scheme(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        path = route.split()[1]
        unauthenticated = path in ("/livez", "/readyz", "/metrics", *SIGN_IN_PATHS)
        scheme = "workerToken" if path.startswith("/v1/attempts/") else "token"
        assert operation["security"] == ([] if unauthenticated else [{scheme: []}]), route


def test_bounds_of_numbers_have_the_names_of_json_schema(world: World) -> None:
    schemas = world.app.openapi()["components"]["schemas"]
    assert schemas["CheckpointReport"]["properties"]["seconds"]["anyOf"][0]["maximum"] == 1e9
    assert schemas["Batch"]["properties"]["loaders"]["maximum"] == 64
    assert schemas["BuiltinData"]["properties"]["eval_fraction"]["exclusiveMaximum"] == 1
    parts = [*schemas.values()]
    for part in parts:  # grows
        if isinstance(part, dict):
            assert not (part.get("type") in ("number", "integer") and part.keys() & {"le", "ge", "lt", "gt"}), part
            parts += part.values()
        elif isinstance(part, list):
            parts += part


def test_no_parameter_is_nullable(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        for parameter in operation.get("parameters", ()):
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), (route, parameter["name"])


def test_every_parameter_has_a_description(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (route, parameter["name"])


def patterns(document: Any) -> set[str]:
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    own = {document["pattern"]} if isinstance(document, dict) and isinstance(document.get("pattern"), str) else set()
    return own.union(*map(patterns, inner))


def test_every_pattern_has_a_readable_validation_message(world: World, operations: dict[str, dict[str, Any]]) -> None:
    """Errors describe formats in words; a pattern that only limits the characters has a generic message."""
    parameters = [parameter for operation in operations.values() for parameter in operation.get("parameters", ())]
    # A malformed id in a path gets 404, and these two parameters have messages of their own.
    parameters = [
        each for each in parameters if each["in"] != "path" and each["name"] not in ("after", "last-event-id")
    ]
    schemas = world.client.get("/openapi.json").json()["components"]["schemas"]
    used = patterns(parameters) | patterns(schemas)
    assert RANK_PATTERN in used
    for pattern in used - set(PATTERN_MESSAGES):
        assert re.fullmatch(r"\^\[.*\][*+]\$", pattern), pattern


def test_documented_headers_cover_retries_ranges_and_offsets(operations: dict[str, dict[str, Any]]) -> None:
    for route, operation in operations.items():
        assert "X-Request-ID" in operation["responses"]["401"]["headers"], route
        assert "Retry-After" in operation["responses"]["429"]["headers"], route
    log = operations["GET /v1/jobs/{job_id}/logs"]["responses"]
    assert "X-Trainyard-Next-Offset" in log["200"]["headers"]
    for route, operation in operations.items():
        if "206" in operation["responses"]:
            assert "Content-Range" in operation["responses"]["416"]["headers"], route
            assert all("ETag" in operation["responses"][status]["headers"] for status in ("200", "206", "304")), route
            assert route.replace("GET", "HEAD") in operations
    assert {"200", "201"} <= set(operations["PUT /v1/code/{digest}"]["responses"])


def problems(document: dict[str, Any], content: dict[str, Any]) -> list[str]:
    """Return the problems of a body's example: it is missing, or it does not match the schema."""
    schema = content["schema"]
    named = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    example = content.get("example", named.get("example"))
    if example is None:
        return ["there is none"]
    whole = {**schema, "components": document["components"]}
    return [
        f"{error.instance_path}: {error.message}" for error in jsonschema_rs.validator_for(whole).iter_errors(example)
    ]


def test_bodies_have_examples_that_match_their_schema(world: World) -> None:
    document = world.app.openapi()
    checked = 0
    for verbs in document["paths"].values():
        for operation in verbs.values():
            bodies = [one for status, one in operation["responses"].items() if status.startswith("2")]
            bodies += [operation["requestBody"]] if "requestBody" in operation else []
            for body in bodies:
                content = body.get("content", {}).get("application/json")
                if content is not None and {"type": "null"} not in content["schema"].get("anyOf", ()):
                    assert problems(document, content) == [], operation["operationId"]
                    checked += 1
    assert checked > 60


def test_search_of_a_sweep_has_an_example_that_is_accepted(world: World) -> None:
    schemas = world.app.openapi()["components"]["schemas"]
    body = {**schemas["SweepRequest"]["example"], "search": schemas["Search-Input"]["example"]}
    del body["grid"]
    answer = world.client.post("/v1/sweeps", json=body)
    assert (answer.status_code, answer.json().get("algorithm")) == (201, "tpe"), answer.json()


def test_examples_contain_the_whole_example_of_a_spec(world: World) -> None:
    schemas = world.client.get("/openapi.json").json()["components"]["schemas"]
    assert "version" in schemas["TrainingSpec"]["example"]
    assert schemas["Template"]["example"]["spec"] == schemas["TrainingSpec"]["example"], "in every process"


def test_invalid_example_is_detected(world: World) -> None:
    document = world.app.openapi()
    content = {"schema": {"$ref": "#/components/schemas/ClaimGrant"}}
    assert problems(document, {**content, "example": {"execution": 0}}) != []
    assert problems(document, {"schema": {"type": "object"}}) == ["there is none"]


def test_routes_share_one_schema_of_the_spec(world: World) -> None:
    document = world.app.openapi()
    schemas = document["components"]["schemas"]
    for path in ("/v1/jobs", "/v1/plans"):
        for content in document["paths"][path]["post"]["requestBody"]["content"].values():
            assert content["schema"] == {"$ref": "#/components/schemas/TrainingSpec"}
    assert schemas["SweepRequest"]["properties"]["spec"]["$ref"] == "#/components/schemas/TrainingSpec"
    assert schemas["TrainingSpec"]["properties"]["optimizer"]["$ref"] == "#/components/schemas/Optimizer"
    assert "lr" in schemas["Optimizer"]["properties"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/jobs", "GET, POST"),
        ("/v1/jobs/job_x", "DELETE, GET, PATCH"),
        ("/v1/tokens/self", "DELETE, GET"),
        ("/v1/jobs/job_x/export/files/a/b", "GET, HEAD"),
    ],
)
def test_wrong_method_returns_all_allowed_methods(world: World, path: str, allowed: str) -> None:
    answer = world.client.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "query", ["jobs?after=", "jobs?created_after=0.5", "sweeps?after=job_1", "audit?after=7", "webhooks?after=x"]
)
def test_invalid_page_cursor_is_rejected(world: World, query: str) -> None:
    assert world.client.get(f"/v1/{query}").status_code == 422


def test_out_of_range_attempt_number_is_rejected(world: World) -> None:
    job_id = world.submit()
    assert world.client.get(f"/v1/jobs/{job_id}/script?attempt={10**30}").status_code == 422


def test_document_is_rendered_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.client.get("/openapi.json")
    assert first.json() == world.app.openapi()

    def render(*_: Any) -> bytes:
        raise AssertionError("rendered again")

    monkeypatch.setattr(JSONResponse, "render", render)
    assert world.client.get("/openapi.json").content == first.content
