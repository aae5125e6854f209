"""`trainyard resolve`."""

import json

import httpx
import pytest

from tests.unit.trainyard.fake_service import error, job


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--adopt", "77"], {"action": "adopt", "scheduler_id": "77"}),
        (["--resubmit"], {"action": "resubmit"}),
        (["--give-up"], {"action": "give_up"}),
    ],
)
def test_options_become_the_request_body(options, body, service, run):
    service.on("GET", "/v1/jobs/a1", job("a1"))
    service.on("POST", "/v1/jobs/a1/resolve", httpx.Response(202, json=job("a1", status_message="so be it")))
    done = run("resolve", "a1", *options)
    assert (done.exit_code, done.stdout) == (0, "job a1: queued: so be it\n")
    assert json.loads(service.requests[-1].content) == body


@pytest.mark.parametrize("options", [[], ["--resubmit", "--give-up"], ["--adopt", "7", "--resubmit"]])
def test_options_are_mutually_exclusive(options, service, run):
    done = run("resolve", "a1", *options)
    assert done.exit_code == 2
    assert "use exactly one of --adopt ID, --resubmit and --give-up" in done.stderr
    assert service.requests == []


def test_rejection_is_printed(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1"))
    refusal = error(409, "job a1 is running; only a job that is lost", "conflict_error", "nothing_to_resolve")
    service.on("POST", "/v1/jobs/a1/resolve", refusal)
    done = run("resolve", "a1", "--give-up")
    assert done.exit_code != 0
    assert "only a job that is lost" in done.stderr
