"""Schemathesis on the whole API: the OpenAPI document describes every response."""

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS

from tests.support.seeds import Seeds, seed
from tests.support.world import World

ENDLESS_STREAMS = ["stream_jobs"]
"""Operations whose response never ends. Each request would take the client's time limit of 10 s."""

CROSS_CHECKED = {
    "list_jobs",
    "append_log",
    "report_events",
    "report_media",
    "report_metrics",
    "put_code",
    "set_secret",
    "submit_job",
    "submit_changes",
    "make_plan",
    "plan_data",
    "resolve_job",
    "resume_job",
    "retry_job",
    "resolve_orphan",
    "profile_job",
    "enter_job",
    "get_log",
    "search_log",
    "find_log_position",
    "create_project",
    "create_webhook",
    "create_sign_in_code",
    "create_token",
    "exchange_sign_in_code",
    "set_oidc_user",
    "sign_in_with_munge",
    "submit_sweep",
    "upload_file",
    "start_upload",
    "send_part",
    "complete_upload",
}
"""Operations that may refuse a body that fits the schema, for a combination of fields, for the target of a URL, or
for a query that cannot be read."""

CLIENT_CHOSEN = {"member", "secret_name"}
"""Path parameters whose value the client chooses."""

SHARED_PATHS = {"get_own_token", "revoke_own_token"}
"""Operations whose path also matches a route with an id: the other methods of that route answer 422, not 405."""

LENIENT = {
    *("list_jobs", "list_points", "append_log", "set_model_alias"),
    *("get_project", "change_project", "delete_project", "get_project_usage"),
    *("set_project_member", "remove_project_member"),
}
"""Operations for which Schemathesis makes requests that fit, and calls them invalid: a query parameter that is a list
of texts or an object, whose other types arrive as a text or not at all; a name in a path that is `null` or
a number, such as that of a project that another request has created; no bytes."""

PLACEHOLDER_IDS = [f"seed-{n}" for n in range(4)]
"""Replaced by the ids of seeded resources in each test."""


def add_placeholders(document: dict[str, Any]) -> None:
    """Replace the ids in paths by placeholders, and specs by one example."""
    # Generating whole specs takes minutes, and most of them are refused for combinations of fields.
    spec = document["components"]["schemas"]["TrainingSpec"]
    document["components"]["schemas"]["TrainingSpec"] = {"type": "object", "example": spec["example"]}
    for verbs in document["paths"].values():
        for operation in verbs.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] not in CLIENT_CHOSEN:
                    parameter["schema"] = {"type": "string", "enum": PLACEHOLDER_IDS}
                    parameter.pop("example", None)


@schemathesis.serializer("application/x-tar")
def encode_bytes(_context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()


# A schema cannot state that times are between 1970 and 2200.
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2199, 12, 31))
schemathesis.openapi.format("date-time", TIMES.map(lambda time: f"{time.isoformat()}Z"))


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    folder = tmp_path_factory.mktemp("conformance")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", rate_burst=10**6, worker_rate_burst=10**6)
    yield world, seed(world)
    world.database.dispose()


@pytest.fixture(scope="module")
def api_schema(seeded: tuple[World, Seeds]) -> Any:
    """Return the schema. As a fixture, it is built by the one test process that needs it, and not at collection."""
    return build_schema(seeded[0], coverage=False)


@pytest.fixture(scope="module")
def thorough_schema(seeded: tuple[World, Seeds]) -> Any:
    """Return the schema with the cases that cover each of its constraints, which take most of the time."""
    return build_schema(seeded[0], coverage=True)


def build_schema(world: World, *, coverage: bool) -> Any:
    document = world.client.get("/openapi.json").json()
    add_placeholders(document)
    schema = schemathesis.openapi.from_dict(document)
    schema.app = world.app
    # NUL bytes in URLs are tested in test_nul_bytes.py.
    schema.config.generation.update(allow_extra_parameters=False, allow_x00=False)
    schema.config.checks.negative_data_rejection.expected_statuses += ["431"]
    schema.config.phases.coverage.enabled = coverage
    return schema


@pytest.fixture(autouse=True)
def node_id(request: pytest.FixtureRequest) -> None:
    """Set the attribute that Schemathesis 4.32 reads, and which pytest 9.2 has renamed."""
    request.node._nodeid = request.node.nodeid


FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@schemathesis.pytest.from_fixture("api_schema").exclude(operation_id=ENDLESS_STREAMS).parametrize()
@FEW
def test_every_response_is_documented(case: Any, seeded: tuple[World, Seeds]) -> None:
    check(case, seeded)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@schemathesis.pytest.from_fixture("thorough_schema").exclude(operation_id=ENDLESS_STREAMS).parametrize()
@settings(FEW, max_examples=100)
def test_every_response_to_many_requests_is_documented(case: Any, seeded: tuple[World, Seeds]) -> None:
    check(case, seeded)


def check(case: Any, seeded: tuple[World, Seeds]) -> None:
    """Send one generated request, and check its response against the document."""
    world, seeds = seeded
    operation = case.operation.definition.raw["operationId"]
    for name, value in case.path_parameters.items():
        known = seeds.of(operation, name)
        if value in PLACEHOLDER_IDS and known:
            case.path_parameters[name] = known[PLACEHOLDER_IDS.index(value) % len(known)]
    token = seeds.worker_token if case.path.startswith("/v1/attempts") else world.token
    excluded = [CHECKS.get_one("positive_data_acceptance")] if operation in CROSS_CHECKED else []
    excluded += [CHECKS.get_one("unsupported_method")] if operation in SHARED_PATHS else []
    excluded += [CHECKS.get_one("negative_data_rejection")] if operation in LENIENT else []
    case.call_and_validate(
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}"},
        excluded_checks=excluded,
    )
