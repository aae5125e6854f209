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


@pytest.mark.fault_scenario(39)
def test_all_lost_jobs_are_resolved_page_by_page(service, run):
    rows = [
        {"object": "resolution", "job_id": "a1", "resolved": True, "status": "queued", "message": "again"},
        {"object": "resolution", "job_id": "a2", "resolved": False, "status": None, "message": "being cancelled"},
    ]
    pages = [{"object": "list", "data": rows, "has_more": True}, {"object": "list", "data": rows[1:], "has_more": True}]
    service.on("POST", "/v1/lost-jobs/resolve", *(httpx.Response(202, json=page) for page in pages))
    done = run("resolve", "--all-lost", "--resubmit")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[:2] == ["job a1: queued: again", "job a2: not resolved: being cancelled"]
    assert done.stdout.splitlines()[-1] == "1 lost jobs resolved, 1 not resolved"
    assert json.loads(service.requests[0].content) == {"action": "resubmit"}


@pytest.mark.parametrize(
    "arguments", [["a1", "--all-lost", "--give-up"], ["--give-up"], ["--all-lost", "--adopt", "7"]]
)
def test_one_job_and_all_lost_jobs_exclude_each_other(arguments, service, run):
    assert run("resolve", *arguments).exit_code == 2
    assert service.requests == []


def test_rejection_is_printed(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1"))
    refusal = error(409, "job a1 is running; only a job that is lost", "conflict_error", "nothing_to_resolve")
    service.on("POST", "/v1/jobs/a1/resolve", refusal)
    done = run("resolve", "a1", "--give-up")
    assert done.exit_code != 0
    assert "only a job that is lost" in done.stderr
