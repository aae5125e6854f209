"""`trainyard doctor --deep`: a job on each partition, and what becomes of it."""

import json

import httpx
import pytest

from tests.unit.trainyard.fake_service import attempt, error, job
from trainyard.cli.partition_checks import check_partitions

JOBS = "/v1/jobs"
TIMES = {"started_at": "2026-01-02T03:04:05.000Z", "finished_at": "2026-01-02T03:04:12.000Z"}


def cluster(*partitions):
    return {"object": "cluster", "backend": "slurm", "partitions": list(partitions)}


def partition(name, **changes):
    return {"name": name, "state": "up", **changes}


def checked(service, seconds=60.0):
    ticks = iter(range(1000))
    with service.client() as client:
        return [(f.name, f.state, f.message) for f in check_partitions(client, seconds, lambda: float(next(ticks)))]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


def test_a_job_runs_on_each_partition_that_is_up(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu", time_limit_minutes=2), partition("old", state="down")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    ended = job("a1", status="succeeded", attempt=attempt(nodes=["n1"]), **TIMES)
    service.on("GET", f"{JOBS}/a1", job("a1", status="running"), ended)
    service.on("DELETE", f"{JOBS}/a1", httpx.Response(204))
    assert checked(service) == [
        ("partition old", "warning", "not checked: the partition is down"),
        ("partition gpu", "ok", "a job ran on n1 in 7 s: interpreter, run directory and route to the service work"),
    ]
    (spec,) = [json.loads(request.content) for request in service.requests if request.method == "POST"]
    assert spec["resources"] == {"partition": "gpu", "time_limit_minutes": 2}
    assert service.requests[-1].method == "DELETE"


def test_a_failed_job_is_an_error_and_remains(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status="failed", status_message="the worker did not start: no python"))
    assert checked(service) == [("partition gpu", "error", "job a1: failed: the worker did not start: no python")]
    assert "DELETE" not in {request.method for request in service.requests}


def test_a_worker_without_a_route_to_the_service_is_a_warning(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    silent = job("a1", status="running", condition={"code": "worker_unreachable"})
    service.on("GET", f"{JOBS}/a1", silent, job("a1", status="succeeded"))
    ((name, state, message),) = checked(service)
    assert (name, state) == ("partition gpu", "warning")
    assert "could not reach the service" in message


def test_a_refused_job_is_an_error(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, error(422, "there is no GPU", code="invalid_value"))
    assert checked(service) == [("partition gpu", "error", "the job was refused: there is no GPU")]


def test_a_job_that_does_not_end_in_time_is_cancelled(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status="pending", status_message="waiting"))
    service.on("POST", f"{JOBS}/a1/cancel", httpx.Response(202, json=job("a1")))
    assert checked(service, 3.0) == [("partition gpu", "warning", "job a1 has not ended after 3 s: pending: waiting")]
    assert service.requests[-1].url.path == f"{JOBS}/a1/cancel"


@pytest.mark.parametrize(("status", "fix"), [("pending", "wait for free nodes, or raise"), ("running", "raise")])
def test_the_advice_after_the_timeout_depends_on_the_status(service, status, fix):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status=status, status_message="Training on node1."))
    service.on("POST", f"{JOBS}/a1/cancel", httpx.Response(202, json=job("a1")))
    ticks = iter(range(1000))
    with service.client() as client:
        (finding,) = check_partitions(client, 3.0, lambda: float(next(ticks)))
    assert finding.fix == f"{fix} --timeout; the job is cancelled"
    assert finding.message.endswith("Training on node1")


def test_a_failed_job_is_named_in_the_advice(service):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status="failed", status_message="no python"))
    with service.client() as client:
        (finding,) = check_partitions(client, 60.0)
    assert "trainyard show a1" in str(finding.fix)


def test_an_interrupt_cancels_the_jobs(service, monkeypatch):
    def interrupt(_seconds):
        raise KeyboardInterrupt

    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status="pending"))
    service.on("POST", f"{JOBS}/a1/cancel", httpx.Response(202, json=job("a1")))
    monkeypatch.setattr("time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        checked(service)
    assert service.requests[-1].url.path == f"{JOBS}/a1/cancel"
