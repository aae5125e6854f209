"""`steps` and `epochs` exclude each other: setting one removes the other."""

import json

import pytest

from tests.unit.trainyard.fake_service import job

SUCCEEDED = job("a1", status="succeeded")


def sent(service, run, *arguments, document=None):
    service.on("POST", "/v1/jobs", SUCCEEDED)
    assert run(*arguments, input=json.dumps(document or {})).exit_code == 0
    return json.loads(service.requests[-1].content)


@pytest.mark.parametrize(("one", "other"), [("steps", "epochs"), ("epochs", "steps")])
def test_set_replaces_the_other_length_of_a_spec(service, run, one, other):
    spec = sent(service, run, "submit", "-", "--set", f"{one}=4", document={other: 3})
    assert (spec[one], spec[other]) == (4, None)


def test_fork_replaces_the_other_length(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", spec={"task": "regression", "epochs": 3, "steps": None}))
    spec = sent(service, run, "fork", "a1", "--set", "steps=400")
    assert (spec["steps"], spec["epochs"]) == (400, None)


def test_python_client_fork_replaces_the_other_length(service):
    service.on("GET", "/v1/jobs/a1", job("a1", spec={"task": "regression", "epochs": 3}))
    service.on("POST", "/v1/jobs", SUCCEEDED).client().fork("a1", changes={"steps": 800})
    spec = json.loads(service.requests[-1].content)
    assert (spec["steps"], spec["epochs"]) == (800, None)


def test_sweep_over_a_length_replaces_the_other(service, run):
    made = {"id": "swp_1", "name": "x", "created_by": "a", "created_at": SUCCEEDED["created_at"], "fields": ["steps"]}
    service.on("POST", "/v1/sweeps", {**made, "size": 2, "counts": {}, "members": []})
    assert run("sweep", "-", "--grid", "steps=4,8", input='{"epochs": 3}').exit_code == 0
    assert json.loads(service.requests[-1].content)["spec"]["epochs"] is None


def test_both_lengths_are_sent_and_rejected_by_the_service(service, run):
    spec = sent(service, run, "submit", "-", "--set", "steps=4", "--set", "epochs=2")
    assert (spec["steps"], spec["epochs"]) == (4, 2)


def test_null_does_not_remove_the_other_length(service, run):
    spec = sent(service, run, "submit", "-", "--set", "epochs=null", document={"steps": 3})
    assert (spec["steps"], spec["epochs"]) == (3, None)


def test_fork_of_a_script_job_is_an_error_with_alternatives(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", spec={"task": "script"}))
    refused = run("fork", "a1")
    reason = "a job of task `script` has no checkpoint to start from"
    assert refused.stderr == f"error: {reason}; submit its spec anew, or run it again: trainyard retry a1\n"
    assert (refused.exit_code, len(service.requests)) == (2, 1)
