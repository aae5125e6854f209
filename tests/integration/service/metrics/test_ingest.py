"""The metrics route: limits, atomic batches and answers."""

import json
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
import structlog

from service.api.rate_limits import Rate, RateLimiter
from service.auth.principals import Principal
from service.core.errors import UnavailableError
from service.metrics.ingest import writer as writer_module
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

POINTS = b'{"execution":1,"resumed_from_step":0,"points":[%s]}'


def stored(world: World) -> int:
    with world.database.read() as session:
        return session.scalar(sa.text("SELECT COUNT(*) FROM points")) or 0


def test_duplicates_are_counted(world: World) -> None:
    worker = world.start(world.submit())
    worker.metrics([("a", 1, 1.0), ("a", 2, 1.0)])
    answer = worker.metrics([("a", 2, 5.0), ("a", 3, 1.0), ("a", 3, 2.0)])
    assert answer.json() == {"accepted": 1, "duplicates": 2}


@pytest.mark.databases("sqlite", "postgres")
def test_case_17_too_many_metric_names_are_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_KEYS", 20)
    job = world.submit()
    worker = world.start(job)
    assert worker.metrics([(f"k{n}", 1, 1.0) for n in range(20)]).status_code == 200
    refused = worker.metrics([("k1", 2, 1.0), ("one more", 2, 1.0)])
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_many_keys")
    assert stored(world) == 20
    assert worker.metrics([("k1", 2, 1.0)]).status_code == 200
    other = world.start(world.submit())
    assert other.metrics([("one more", 1, 1.0)]).status_code == 200, "the limit applies to each job"


def test_worker_token_is_authenticated_again_after_ten_seconds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = world.app_state.worker_tokens
    authenticate, calls = cache._authenticate, []

    def counting(authorization: str | None, now: datetime) -> Principal:
        calls.append(now)
        return authenticate(authorization, now)

    monkeypatch.setattr(cache, "_authenticate", counting)
    worker = world.start(world.submit())
    for seconds, expected in ((0, 1), (9, 1), (1, 2), (0, 2)):
        world.clock.advance(seconds)
        assert worker.metrics([("a", 1, 1.0)]).status_code == 200
        assert len(calls) == expected


def test_full_queue_returns_429(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = world.start(world.submit())
    monkeypatch.setattr(world.app_state.ingest_queue, "_limit", 10)
    monkeypatch.setattr(world.app_state.ingest_queue, "_bytes", 1)
    answer = worker.metrics([("a", 1, 1.0)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_requests")
    assert answer.headers["retry-after"] == "1"


def test_exhausted_rate_limit_returns_429_with_retry_after(world: World) -> None:
    worker = world.start(world.submit())
    world.app_state.worker_rate_limiter = RateLimiter(Rate(1.0, 3))
    for remaining in ("2", "1", "0"):
        answer = worker.metrics([("a", 1, 1.0)])
        assert (answer.status_code, answer.headers["ratelimit-remaining"]) == (200, remaining)
    answer = worker.metrics([("a", 1, 1.0)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited")
    assert answer.headers["retry-after"] == "1"


def test_unavailable_database_returns_503_and_is_logged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = world.start(world.submit())

    def fail(*_: Any) -> Any:
        raise UnavailableError("the database does not answer", code="database")

    monkeypatch.setattr(world.app_state.ingest_queue._writer, "write", fail)
    with structlog.testing.capture_logs() as lines:
        answer = worker.metrics([("a", 1, 1.0)])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database")
    assert answer.headers["retry-after"] == "2"
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["status"], line["log_level"]) == (503, "error")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 200_000, 422),
        (b'{"execution":1,"resumed_from_step":0,"points":' + b"[" * 200_000, 422),
        (b'{"a":' * 100_000, 422),
        (b"\xff\xfe", 422),
        (b"", 422),
        (b'{"execution":1,"resumed_from_step":0,"points":[],"points":[]}', 200),
        (POINTS % b'{"key":"a","step":1,"value":1e400,"time":"2026-01-01T00:00:00Z"}', (200, 422)),
        (POINTS % b'{"key":"a","step":1,"value":1,"time":"2026-01-01T00:00:00"}', 422),
        (POINTS % b",".join([b"{}"] * 1001), 422),
        (b'{"pad":"' + b"x" * 1_100_000 + b'"}', 413),
    ],
)  # fmt: skip
def test_hostile_bodies_get_a_json_response(world: World, body: bytes, status: Any) -> None:
    worker = world.start(world.submit())
    headers = {"Content-Type": "application/json"}
    answer = worker.client.post(f"/v1/attempts/{worker.attempt_id}/metrics", content=body, headers=headers)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text[:200]
    assert json.loads(answer.text)
    assert answer.status_code == 200 or stored(world) == 0


def test_token_of_another_attempt_or_of_a_user_is_rejected(world: World) -> None:
    one, two = (world.start(world.submit()) for _ in range(2))
    body = {"execution": 1, "resumed_from_step": 0, "points": []}
    path = f"/v1/attempts/{two.attempt_id}/metrics"
    assert one.client.post(path, json=body).status_code == 403
    assert world.client.post(path, json=body).status_code == 403
    assert world.new_client(None).post(path, json=body).status_code == 401
    assert two.client.post(path, json=body).status_code == 200
