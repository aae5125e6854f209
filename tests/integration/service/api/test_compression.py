"""JSON answers are compressed; streams, downloads, pages and answers with secrets are not."""

import json
import zlib
from typing import Any

import pytest

from service.api.middleware.compression import MIN_BYTES
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def raw(world: World, path: str, accept: str = "gzip, deflate") -> tuple[Any, bytes]:
    """The response, and its bytes as they were sent."""
    with world.client.stream("GET", path, headers={"Accept-Encoding": accept}) as answer:
        return answer, b"".join(answer.iter_raw())


def report_curves(world: World, metrics: int, points: int) -> str:
    job = world.submit()
    worker = world.start(job)
    for step in range(points):
        sent = [(f"eval/metric_{name}", step, 1 / (step + name + 1)) for name in range(metrics)]
        assert worker.metrics(sent).status_code == 200
    return job


def test_curves_are_a_fraction_of_their_size(world: World) -> None:
    job = report_curves(world, 59, 40)
    answer, sent = raw(world, f"/v1/jobs/{job}/metrics")
    plain = world.client.get(f"/v1/jobs/{job}/metrics", headers={"Accept-Encoding": "identity"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(sent) < len(plain.content) / 5
    assert zlib.decompress(sent, 16 + zlib.MAX_WBITS) == plain.content
    assert len(json.loads(plain.content)["series"]) == 59


@pytest.mark.parametrize("accept", ["identity", "deflate", "gzip;q=0", "br, gzip; q=0.0", "xgzip"])
def test_clients_that_do_not_accept_it_get_json(world: World, accept: str) -> None:
    answer, sent = raw(world, "/v1/templates", accept)
    assert "content-encoding" not in answer.headers
    assert len(json.loads(sent)["data"]) > 5


@pytest.mark.parametrize("accept", ["gzip", "br, GZIP;q=0.5", "deflate,gzip"])
def test_clients_that_accept_it_get_gzip(world: World, accept: str) -> None:
    answer, sent = raw(world, "/v1/templates", accept)
    assert answer.headers["content-encoding"] == "gzip"
    assert len(json.loads(zlib.decompress(sent, 16 + zlib.MAX_WBITS))["data"]) > 5


def test_small_answers_and_other_kinds_are_not_compressed(world: World) -> None:
    job = report_curves(world, 3, 3)
    world.worker(job).log("0", 0, b"line\n" * MIN_BYTES)
    for path in (
        f"/v1/jobs/{job}/events?limit=1",
        f"/v1/jobs/{job}/logs",
        f"/v1/jobs/{job}/metrics?format=csv",
        "/livez",
    ):
        answer, _ = raw(world, path)
        assert (answer.status_code, "content-encoding" in answer.headers) == (200, False), path


def test_pages_with_the_secret_of_forms_are_not_compressed(world: World) -> None:
    answer, sent = raw(world, "/sign-in")
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    assert b"<html" in sent


def test_answers_that_create_secrets_are_not_compressed(world: World) -> None:
    answer = world.client.post("/v1/tokens", json={"name": "n" * 60, "role": "viewer"})
    assert answer.status_code in (200, 201)
    assert "content-encoding" not in answer.headers


def test_streams_are_sent_at_once(world: World) -> None:
    job = report_curves(world, 40, 3)
    world.worker(job).end("completed", step=20)
    world.tick()
    with world.client.stream("GET", f"/v1/jobs/{job}/stream", headers={"Last-Event-ID": "0"}) as answer:
        assert "content-encoding" not in answer.headers
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert sum(len(part) for part in answer.iter_raw()) > MIN_BYTES
