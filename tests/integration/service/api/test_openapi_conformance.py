"""Schemathesis on the whole API: whatever is sent, every answer is one that the OpenAPI document announces."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS

from service.api.dependencies import AppState
from service.core.clock import utc_now
from service.core.settings import Settings
from service.db.engine import Database
from service.web.app import create_app
from tests.support.seeds import Seeds, seed
from tests.support.world import World

ENDLESS = ["stream_jobs"]
"""Streams that go on for ever cannot be read to their end."""

CROSS_CHECKED = {
    "put_code",
    "set_secret",
    "submit_job",
    "make_plan",
    "resolve_job",
    "profile_job",
    "get_log",
    "create_webhook",
    "create_token",
    "submit_sweep",
}
"""What fits the schema can still be refused for how its fields go together, or for where an address leads."""

CHOSEN = {"secret_name"}
"""Parameters of paths that the client chooses."""

SHADOWED = {"get_own_token"}
"""Of these the path is another route's too, with `self` for the id: a method of that one answers 422, not 405."""

_PLACES = [f"seed-{n}" for n in range(4)]
"""What stands for ids until there are any."""


def described() -> Any:
    """The OpenAPI document as a schema, with places for ids in the paths."""
    app_state = AppState(settings=Settings(), database=Database("sqlite://"), clock=utc_now)
    document = create_app(app_state).openapi()
    # Making up whole specs takes minutes, and most of them are refused for how their fields go together.
    spec = document["components"]["schemas"]["TrainingSpec"]
    document["components"]["schemas"]["TrainingSpec"] = {"type": "object", "example": spec["example"]}
    for verbs in document["paths"].values():
        for operation in verbs.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] not in CHOSEN:
                    parameter["schema"] = {"type": "string", "enum": _PLACES}
                    parameter.pop("example", None)
    api_schema = schemathesis.openapi.from_dict(document)
    # Of an address with a NUL nothing is read: test_nul_bytes.py.
    api_schema.config.generation.update(allow_extra_parameters=False, allow_x00=False)
    return api_schema.exclude(operation_id=ENDLESS)


class Door:
    """Leads to the service once there is one."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@schemathesis.serializer("application/x-tar")
def plain_bytes(_context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()


schema = described()
door = Door()
schema.app = door


@pytest.fixture(scope="module")
def sown(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    folder = tmp_path_factory.mktemp("conformance")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", rate_burst=10**6, worker_rate_burst=10**6)
    door.app = world.app
    yield world, seed(world)
    world.database.dispose()


@schema.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_response_is_documented(case: Any, sown: tuple[World, Seeds]) -> None:
    world, seeds = sown
    operation = case.operation.definition.raw["operationId"]
    for name, value in case.path_parameters.items():
        known = seeds.of(operation, name)
        if value in _PLACES and known:
            case.path_parameters[name] = known[_PLACES.index(value) % len(known)]
    token = seeds.worker_token if case.path.startswith("/v1/attempts") else world.token
    excluded = [CHECKS.get_one("positive_data_acceptance")] if operation in CROSS_CHECKED else []
    excluded += [CHECKS.get_one("unsupported_method")] if operation in SHADOWED else []
    case.call_and_validate(
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}"},
        excluded_checks=excluded,
    )
