"""Generated reports with a valid attempt token: most are accepted, and afterwards every reader still works."""

from collections import Counter, defaultdict
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from service.api.rate_limits import Rate, RateLimiter
from tests.support.readers import check_readers
from tests.support.world import FakeWorker, World

pytestmark = pytest.mark.databases("sqlite")

NONCE = "nonce-0001"
MIN_ACCEPTED = 0.25
"""The least fraction of the generated requests of a route that is accepted. Others have times before 1970, which the
OpenAPI document cannot exclude, or leave a gap in the log."""


def worker_operations(world: World) -> list[Any]:
    """The routes of workers as the OpenAPI document describes them."""
    schema = schemathesis.openapi.from_dict(world.client.get("/openapi.json").json())
    schema.app = world.app
    schema.config.generation.update(allow_extra_parameters=False)
    results = schema.include(path_regex="^/v1/attempts/").get_all_operations()
    return [operation.ok() for operation in results]


def send_all(operation: Any, worker: FakeWorker, examples: int) -> Counter[int]:
    """Send generated requests of one operation for the worker's attempt; return the statuses."""
    statuses: Counter[int] = Counter()
    token = worker.client.headers["authorization"]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        case.path_parameters = {"aid": worker.attempt_id}
        if isinstance(case.body, dict):
            # Generated numbers and nonces are those of other executions.
            case.body |= {"execution": worker.execution} if "execution" in case.body else {}
            case.body |= {"nonce": NONCE} if "nonce" in case.body else {}
        if case.query and isinstance(case.query.get("offset"), int):
            # Few generated ranks exist, and few offsets continue the log.
            case.query["offset"] %= 2
            if case.query["rank"].isdecimal():
                case.query["rank"] = str(int(case.query["rank"]) % 2)
        answer = case.call_and_validate(
            base_url="http://localhost",
            headers={"Authorization": token},
            excluded_checks=[CHECKS.get_one("positive_data_acceptance")],
        )
        statuses[answer.status_code] += 1

    send()
    return statuses


@pytest.mark.cpu_seconds(12)
@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_generated_reports_are_accepted_and_break_no_reader(world: World, examples: int) -> None:
    world.app_state.worker_rate_limiter = world.app_state.address_rate_limiter = RateLimiter(Rate(10**6, 10**6))
    job = world.submit()
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0) for step in range(3)])
    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    for operation in worker_operations(world):
        name = operation.definition.raw["operationId"]
        statuses[name] = send_all(operation, worker, examples)
    assert len(statuses) == 9
    check_readers(world, job)
    worker.end("completed")
    world.tick(3)
    check_readers(world, job)
    assert world.status(job) in ("succeeded", "failed")
    for name, counts in statuses.items():
        assert counts[200] / counts.total() >= MIN_ACCEPTED, (name, counts)
