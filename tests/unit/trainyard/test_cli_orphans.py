"""`trainyard orphans` lists, cancels and adopts what no job names."""

import json

import pytest

from tests.unit.trainyard.fake_service import TIME, page

ORPHAN = {
    "object": "orphan",
    "id": "job_01kdvdna00az9cxjnszk8v8abh",
    "job_id": "job_01kdvdna00az9cxjnszk8v8abh",
    "name": "parity",
    "scheduler_id": "4711",
    "state": "running",
    "folder": "/runs/job_01kdvdna00az9cxjnszk8v8abh",
    "first_observed_at": TIME,
}


def test_orphans_are_listed_as_a_table_or_json(service, run):
    service.on("GET", "/v1/orphans", page(ORPHAN), page(ORPHAN), page())
    shown = run("orphans").stdout
    assert all(text in shown for text in ("SCHEDULER ID", "parity", "4711", "running"))
    assert json.loads(run("orphans", "--json").stdout.splitlines()[0])["id"] == ORPHAN["id"]
    assert run("orphans").stderr == "no orphans\n"


@pytest.mark.parametrize("action", ["cancel", "adopt"])
def test_orphan_is_cancelled_or_adopted_by_its_id(service, run, action):
    service.on("POST", f"/v1/orphans/{ORPHAN['id']}/resolve", {**ORPHAN, "requested": action})
    assert run("orphans", f"--{action}", ORPHAN["id"]).stdout == f"{ORPHAN['id']}: requested: {action}\n"
    assert json.loads(service.requests[-1].content) == {"action": action}


def test_orphan_is_cancelled_by_its_scheduler_id(service, run):
    service.on("GET", "/v1/orphans", page(ORPHAN))
    service.on("POST", f"/v1/orphans/{ORPHAN['id']}/resolve", {**ORPHAN, "requested": "cancel"})
    assert run("orphans", "--cancel", "4711").stdout == f"{ORPHAN['id']}: requested: cancel\n"


def test_orphan_is_adopted_for_another_user(service, run):
    service.on("POST", f"/v1/orphans/{ORPHAN['id']}/resolve", {**ORPHAN, "requested": "adopt"})
    assert run("orphans", "--adopt", ORPHAN["id"], "--owner", "alice").exit_code == 0
    assert json.loads(service.requests[-1].content) == {"action": "adopt", "owner": "alice"}
    assert run("orphans", "--cancel", ORPHAN["id"], "--owner", "alice").exit_code == 2


def test_two_actions_on_orphans_are_a_usage_error(run):
    assert run("orphans", "--cancel", "a", "--adopt", "b").exit_code == 2
