"""`trainyard doctor --deep`: a job on each partition or node, and what becomes of it."""

import json

import httpx
import pytest

from tests.unit.trainyard.fake_service import attempt, error, job, page
from trainyard.cli.partition_checks import check_nodes, check_partitions

JOBS = "/v1/jobs"
TIMES = {"started_at": "2026-01-02T03:04:05.000Z", "finished_at": "2026-01-02T03:04:12.000Z"}


def cluster(*partitions):
    return {"object": "cluster", "backend": "slurm", "partitions": list(partitions)}


def partition(name, **changes):
    return {"name": name, "state": "up", **changes}


def checked(service, seconds=60.0, check=check_partitions):
    ticks = iter(range(1000))
    with service.client() as client:
        return [(f.name, f.state, f.message) for f in check(client, seconds, lambda: float(next(ticks)))]


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
    assert checked(service, 3.0) == [("partition gpu", "warning", "job a1 has not ended in time: pending: waiting")]
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


def status_event(status, message):
    event = {"id": "e", "job_id": "a1", "type": "status", "level": "info", "created_at": TIMES["started_at"]}
    return event | {"message": message, "data": {"status": status}}


@pytest.mark.parametrize("repeated", [{"number": 1, "ended_at": TIMES["finished_at"]}, {"number": 2}])
def test_a_job_that_needs_another_attempt_is_an_error(service, repeated):
    service.on("GET", "/v1/cluster", cluster(partition("gpu")))
    service.on("POST", JOBS, httpx.Response(201, json=job("a1")))
    service.on("GET", f"{JOBS}/a1", job("a1", status="queued", attempt=attempt(**repeated)))
    texts = {"queued": "Accepted.", "pending": "Submitted."}
    events = [status_event(*one) for one in [*texts.items(), ("queued", "To be continued. Cause: no python.")]]
    service.on("GET", f"{JOBS}/a1/events", page(*events))
    service.on("POST", f"{JOBS}/a1/cancel", httpx.Response(202, json=job("a1")))
    message = "job a1 did not succeed at once: To be continued. Cause: no python"
    assert checked(service) == [("partition gpu", "error", message)]
    assert service.requests[-1].url.path == f"{JOBS}/a1/cancel"


class TestNodes:
    @pytest.fixture
    def sinfo(self, tmp_path, monkeypatch):
        """Return a function that sets the output of sinfo."""
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

        def answer(*lines):
            script = "\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines), ""])
            (tmp_path / "sinfo").write_text(script)
            (tmp_path / "sinfo").chmod(0o755)

        return answer

    def test_each_node_gets_one_job_and_the_default_partition_if_it_can(self, service, sinfo):
        sinfo("n1|big|idle", "n1|gpu|idle", "n2|big|mixed", "n3|old|idle", "n4|gpu|drained*", "n5|gpu|allocated*")
        partitions = [partition("gpu", default=True), partition("big"), partition("old", state="down")]
        service.on("GET", "/v1/cluster", cluster(*partitions))
        service.on("POST", JOBS, *(httpx.Response(201, json=job(name)) for name in ("a1", "a2")))
        for name in ("a1", "a2"):
            service.on("GET", f"{JOBS}/{name}", job(name, status="succeeded", **TIMES))
            service.on("DELETE", f"{JOBS}/{name}", httpx.Response(204))
        ok = "a job ran in 7 s: interpreter, run directory and route to the service work"
        assert checked(service, check=check_nodes) == [
            ("node n4", "warning", "not checked: it is drained* in Slurm"),
            ("node n5", "warning", "not checked: it is allocated* in Slurm"),
            ("node n1", "ok", ok),
            ("node n2", "ok", ok),
        ]
        specs = [json.loads(request.content) for request in service.requests if request.method == "POST"]
        assert [spec["resources"] | {"time_limit_minutes": 0} for spec in specs] == [
            {"partition": name, "options": {"nodelist": node}, "time_limit_minutes": 0}
            for name, node in (("gpu", "n1"), ("big", "n2"))
        ]

    def test_a_machine_without_sinfo_is_reported(self, service, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        service.on("GET", "/v1/cluster", cluster(partition("gpu")))
        message = "not checked one by one: this machine has no sinfo, which lists them"
        assert checked(service, check=check_nodes) == [("nodes", "warning", message)]

    def test_nothing_is_checked_where_there_are_no_partitions(self, service):
        service.on("GET", "/v1/cluster", {"object": "cluster", "backend": "local"})
        assert checked(service, check=check_nodes) == []
