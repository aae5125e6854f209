"""`trainyard cluster` and `trainyard maintenance`."""

import json

import httpx
import pytest

CLUSTER = {
    "object": "cluster",
    "backend": "slurm",
    "taken_at": "2026-01-02T03:04:05.000Z",
    "age_seconds": 12.0,
    "error": None,
    "nodes": {"idle": 1, "drained": 1},
    "gpus": [{"type": "a100", "total": 8, "free": 3}, {"type": None, "total": 2, "free": None}],
    "slots": None,
    "partitions": [
        {
            "name": "gpu",
            "default": True,
            "state": "up",
            "time_limit_minutes": 2880,
            "max_nodes": 4,
            "groups": ["ml"],
            "nodes": {"idle": 1, "drained": 1},
            "gpus": [{"type": "a100", "total": 8, "free": 3}],
        },
        {"name": "cpu", "state": "drain", "nodes": {"idle": 1}},
    ],
}
PATH = "/v1/maintenance"
ON = {
    "object": "maintenance",
    "active": True,
    "message": "m",
    "since": "2026-01-01T12:00:00.000Z",
    "started_by": "anna",
}
OFF = {"object": "maintenance", "active": False, "since": None, "started_by": None, "message": ""}


def test_nodes_gpus_and_partitions_are_listed(service, run):
    done = run_with(service, run, CLUSTER)
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        "backend slurm, as of 12 s ago",
        "nodes: 1 idle, 1 drained",
        "GPUs free: 3 of 8 a100, ? of 2",
        "PARTITION STATE TIME LIMIT NODES PER JOB NODES GPUS FREE GROUPS",
        "gpu* up 2 d up to 4 1 idle, 1 drained 3 of 8 a100 ml",
        "cpu drain none any 1 idle - all",
    ]


def test_the_local_backend_has_slots(service, run):
    answer = {"backend": "local", "age_seconds": 1.0, "slots": {"total": 4, "free": 3}}
    assert "3 of 4 worker processes are free" in run_with(service, run, answer).stdout


def test_missing_snapshot_is_reported(service, run):
    assert "the scheduler (slurm) has not responded yet" in run_with(service, run, {"backend": "slurm"}).stdout


def test_failed_refresh_is_reported_with_its_reason(service, run):
    done = run_with(service, run, CLUSTER | {"error": "sinfo ended with 1"})
    assert done.stderr == "the last refresh failed: sinfo ended with 1\n"


EXCLUDED = {
    "node": "node2",
    "partitions": ["gpu"],
    "since": "2026-01-02T03:04:05.000Z",
    "until": "2026-01-02T03:44:05.000Z",
    "jobs": 2,
    "cause": "Slurm could not launch jobs there",
    "faults": [
        {
            "job_id": "job_1",
            "attempt": 3,
            "kind": "launch_failed",
            "message": "Slurm: FAILED, exit code 0:53",
            "created_at": "2026-01-02T03:14:05.000Z",
        }
    ],
    "drain_command": "scontrol update nodename=node2 state=drain reason=x",
}


def test_excluded_nodes_are_listed_with_what_to_do(service, run):
    answer = CLUSTER | {"excluded_nodes": [EXCLUDED], "node_warning": "The limit is reached."}
    assert run_with(service, run, answer).stdout.splitlines()[-5:] == [
        "excluded: node2 in gpu, from 03:04 until 03:44 UTC: Slurm could not launch jobs there (2 jobs)",
        "  job_1, attempt 3: Slurm: FAILED, exit code 0:53",
        "  to take it out of service: scontrol update nodename=node2 state=drain reason=x",
        "  to let jobs use it again: trainyard cluster --include node2",
        "warning: The limit is reached.",
    ]


def test_excluded_node_is_included_again(service, run):
    service.on("GET", "/v1/cluster", CLUSTER)
    service.on("DELETE", "/v1/cluster/excluded-nodes/node2", httpx.Response(204))
    done = run("cluster", "--include", "node2")
    assert done.exit_code == 0, done.stderr
    assert [request.method for request in service.requests] == ["DELETE", "GET"]


def test_json(service, run):
    service.on("GET", "/v1/cluster", CLUSTER)
    assert json.loads(run("cluster", "--json").stdout)["partitions"][0]["name"] == "gpu"


def run_with(service, run, answer):
    service.on("GET", "/v1/cluster", answer)
    done = run("cluster")
    assert done.exit_code == 0, done.stderr
    return done


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
