"""Batches whose validation is slow are decoded in a thread, whatever their size."""

import json
import threading
from typing import Any

import pytest

from service.api.routes import worker as routes
from service.metrics.ingest.decode import PointBatch, decode_batch, decode_known
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")

POINT: dict[str, Any] = {"key": "a", "step": 1, "value": 1.0, "time": "2026-01-01T00:00:00Z"}


def body(**changes: Any) -> bytes:
    return json.dumps({"execution": 1, "resumed_from_step": 0, "points": [{**POINT, **changes}]}).encode()


def test_only_valid_batches_with_known_names_are_decoded_at_once() -> None:
    assert decode_known(body(), {"a"}) == decode_batch(body(), set())
    for slow in (body(key="b"), body(value="NaN"), body(time="x"), body(more=1), b"["):
        assert decode_known(slow, {"a"}) is None


def test_invalid_batch_does_not_block_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = world.start(world.submit())
    loops: list[bool] = []

    def recorded(data: bytes, known_keys: Any) -> PointBatch:
        loops.append(threading.current_thread().name.startswith("AnyIO worker thread"))
        return decode_batch(data, known_keys)

    monkeypatch.setattr(routes, "decode_batch", recorded)
    answer = worker.post("metrics", {"execution": 0, "resumed_from_step": 0})
    assert (answer.status_code, loops) == (422, [True])
