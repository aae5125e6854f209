"""Unusual values in every parameter of every route get a documented answer and never a 500."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.world import SPEC, World

# Postgres refuses more values than SQLite does.
pytestmark = pytest.mark.databases("postgres")

VALUES = [
    "",
    "-1",
    "9" * 19,
    "9" * 40,
    "evt_" + "9" * 19,
    "1e999",
    "x" * 3000,
    "\u00e9\u2028\U0001f600",
    "../..",
    "'\"%_\\",
    "null",
    "2026-99-99",
]
BODIES = [b"", b"null", b"[]", b"{}", b'{"a":', b'"\\ud800"', b"\xff", b'{"name": "\\u0000", "url": 1}', b"1e999"]
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def wide(database_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(database_url, tmp_path / "state", rate_burst=1_000_000, worker_rate_burst=1_000_000)
    yield world
    world.database.dispose()


@pytest.mark.heavy
def test_responses_to_unusual_values_are_documented(wide: World) -> None:
    job = wide.client.post("/v1/jobs", json=SPEC).json()["id"]
    wide.tick()
    worker = wide.worker(job)
    known = {"job_id": job, "aid": worker.attempt_id, "digest": "sha256:" + "0" * 64}
    odd: list[tuple[str, str, int, str]] = []
    for path, methods in wide.app.openapi()["paths"].items():
        for method, operation in methods.items():
            client = worker.client if "worker" in operation.get("tags", ()) else wide.client
            for url, body in requests(path, operation, known, method):
                answer = client.request(method, url, content=body, headers=JSON)
                if str(answer.status_code) not in operation["responses"] or answer.status_code >= 500:
                    odd.append((method, url[:120], answer.status_code, answer.text[:120]))
    assert not odd, "\n".join(map(str, odd))


def requests(
    path: str, operation: dict[str, Any], known: dict[str, str], method: str
) -> Iterator[tuple[str, bytes | None]]:
    """Each parameter odd in turn, with the others left out or good; then odd bodies."""
    if path.endswith("/stream"):
        return

    def filled(odd: str = "", value: str = "") -> str:
        return re.sub(r"{(\w+)}", lambda m: quote(value if m[1] == odd else known.get(m[1], "x"), safe=""), path)

    needed = "rank=0&offset=0" if path.endswith("/logs") and method == "post" else ""
    for parameter in operation.get("parameters", ()):
        for value in VALUES:
            if parameter["in"] == "path" and value:
                yield f"{filled(parameter['name'], value)}?{needed}", b"{}" if method != "get" else None
            elif parameter["in"] == "query":
                yield f"{filled()}?{needed}&{parameter['name']}={quote(value, safe='')}", None
    if method in ("post", "put"):
        yield from ((f"{filled()}?{needed}", body) for body in BODIES)
