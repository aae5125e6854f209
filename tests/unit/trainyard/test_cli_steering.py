"""`retry`, `resume` and `fork`, with `--watch` and `--force`."""

import json

import pytest

from tests.unit.trainyard.fake_service import job, status, streamed
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

STREAM = "/v1/jobs/a1/stream"


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_watch_follows_the_job_to_its_end(service, run, command):
    service.on("GET", "/v1/jobs/a1", job("a1", status="failed"), job("a1", status="succeeded"))
    service.on("POST", f"/v1/jobs/a1/{command}", job("a1", status="queued", sequence=7))
    service.on("GET", STREAM, streamed(status(8, "running", "y"), status(9, "succeeded", "z")))
    done = run(command, "a1", "--watch")
    assert done.exit_code == 0, done.stderr
    (followed,) = [request for request in service.requests if request.url.path == STREAM]
    assert followed.headers["last-event-id"] == "7", "what came before is not told again"
    assert done.stdout.splitlines()[-2:] == ["succeeded: z", "succeeded; see its metrics with: trainyard metrics a1"]


def test_watched_retry_that_fails_exits_1(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", status="failed"))
    service.on("POST", "/v1/jobs/a1/retry", job("a1", status="queued"))
    service.on("GET", STREAM, streamed(status(1, "failed", "x")))
    assert run("retry", "a1", "--watch").exit_code == 1


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_watch_of_several_jobs_is_a_usage_error(service, run, command):
    done = run(command, "a1", "a2", "--watch")
    assert (done.exit_code, service.requests) == (2, [])
    assert "--watch follows one job" in done.stderr


@pytest.mark.parametrize("command", ["retry", "resume"])
def test_set_changes_resources_and_nothing_else(service, run, command):
    service.on("GET", "/v1/jobs/a1", job("a1", status="failed"))
    service.on("POST", f"/v1/jobs/a1/{command}", job("a1", status="queued"))
    settings = ("--set", "resources.partition=long", "--set", "resources.qos=null", "--set", "resources.options.nice=5")
    done = run(command, "a1", *settings)
    assert done.exit_code == 0, done.stderr
    body = json.loads(service.requests[-1].content)
    assert body["resources"] == {"partition": "long", "qos": None, "options": {"nice": 5}}
    refused = run(command, "a1", "--set", "optimizer.lr=1")
    assert refused.exit_code == 2
    assert "trainyard fork" in refused.stderr


def test_fork_sends_force(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
    service.on("POST", "/v1/jobs", job("a2"))
    assert run("fork", "a1", "--force").exit_code == 0
    assert service.requests[-1].url.params["force"] == "true"


def test_fork_with_another_layout_is_equal_to_rounding(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded"))
    origin = {"job_id": "a1", "step": 10, "continues": True, "differs": [], "layout_differs": ["gpus"]}
    service.on("POST", "/v1/jobs", job("a2", origin=origin))
    title, *changes, first, second = run("fork", "a1", "--set", "gpus=2").stdout.splitlines()
    assert title == "the spec of a1 with these changes:"
    assert "gpus         absent -> 2" in [line.strip() for line in changes]
    assert first == "job a2 (digits-ddp): http://trainyard.test/jobs/a2"
    assert second == (
        "it starts from step 10 of a1 and continues it, equal to rounding and not to the last digit, "
        "because sums have another order: gpus"
    )


def test_fork_with_another_optimizer_does_not_inherit_defaults(service, run):
    spec = parse_spec(
        {"task": "custom", "target": "a:b", "code": "sha256:" + "0" * 64, "steps": 1, "optimizer": {"name": "lion"}}
    )
    service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded", spec=dump_spec(spec)))
    service.on("POST", "/v1/jobs", job("a2"))
    assert run("fork", "a1", "--set", "optimizer.name=adamw", "--set", "resume=weights").exit_code == 0
    optimizer = json.loads(service.requests[-1].content)["optimizer"]
    assert optimizer["name"] == "adamw"
    assert "betas" not in optimizer
