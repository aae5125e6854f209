"""`trainyard maintenance`: what it sends and prints."""

import json

import httpx
import pytest

PATH = "/v1/maintenance"
ON = {
    "object": "maintenance",
    "active": True,
    "message": "m",
    "since": "2026-01-01T12:00:00.000Z",
    "started_by": "anna",
}
OFF = {"object": "maintenance", "active": False, "since": None, "started_by": None, "message": ""}


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["on", "--message", "m"], {"active": True, "message": "m"}),
        (["off"], {"active": False, "message": ""}),
    ],
)
def test_switches_the_mode(run, service, arguments, body):
    service.on("PUT", PATH, httpx.Response(200, json=ON if body["active"] else OFF))
    result = run("maintenance", *arguments)
    assert json.loads(service.requests[0].content) == body
    expected = "is on since 2026-01-01 12:00Z by anna: m" if body["active"] else "is off"
    assert result.stdout == f"maintenance mode {expected}\n"


def test_status_as_json(run, service):
    service.on("GET", PATH, httpx.Response(200, json=ON))
    assert json.loads(run("maintenance", "status", "--json").stdout) == ON
