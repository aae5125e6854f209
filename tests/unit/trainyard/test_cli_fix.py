"""`fix`: the listed changes, and the submission of exactly one of them."""

import json

import pytest

from tests.unit.trainyard.fake_service import error, job

LONG = "x" * 200
LOWER = {
    "fields": {"optimizer.lr": 0.1},
    "note": "a tenth",
    "changes": [
        {"field": "optimizer.lr", "before": 1.0, "after": 0.1, "meaning": "Learning rate."},
        {"field": "resume_from", "before": None, "after": "a1:7", "meaning": ""},
    ],
}
CLIPPED = {
    "fields": {"precision": "bf16", "fsdp.cpu_offload": True},
    "changes": [{"field": "precision", "before": LONG, "after": "bf16", "meaning": ""}],
}


@pytest.fixture
def failed(service):
    """A failed job with two fixes, and advice with a third."""
    advice = {
        "kind": "slow_data",
        "message": "Slow.",
        "field": "batch.loaders",
        "fix": {
            "fields": {"batch.loaders": 2},
            "changes": [{"field": "batch.loaders", "before": 0, "after": 2, "meaning": ""}],
        },
    }
    service.on(
        "GET",
        "/v1/jobs/a1",
        job("a1", status="failed", failure_summary={"fixes": [LOWER, CLIPPED]}, advice=[advice]),
    )
    return service


def test_fixes_are_listed_as_differences(failed, run):
    shown = run("fix", "a1").stdout.splitlines()
    assert shown == [
        "fix: trainyard fix a1 optimizer.lr=0.1",
        "    optimizer.lr  1.0 -> 0.1  (a tenth)",
        "    resume_from   absent -> a1:7",
        "fix: trainyard fix a1 precision=bf16 fsdp.cpu_offload=true",
        f"    precision  {'x' * 60}… -> bf16",
        "fix: trainyard fix a1 batch.loaders=2",
        "    batch.loaders  0 -> 2",
    ]
    listed = json.loads(run("fix", "a1", "--json").stdout)
    assert listed["fixes"][1]["changes"][0]["before"] == LONG, "JSON has all of a long value"
    assert len(listed["fixes"]) == 3


def test_advice_of_show_has_its_difference(failed, run):
    shown = [line.strip() for line in run("show", "a1").stdout.splitlines()]
    at = shown.index("advice      Slow.")
    assert shown[at + 1 : at + 3] == ["fix: trainyard fix a1 batch.loaders=2", "batch.loaders  0 -> 2"]


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (["optimizer.lr=0.1"], LOWER["changes"]),
        (["optimizer.lr=1e-1"], LOWER["changes"]),
        (["fsdp.cpu_offload=true", "precision=bf16"], CLIPPED["changes"]),
    ],
)
def test_exactly_the_shown_differences_are_submitted(failed, run, settings, sent):
    failed.on("POST", "/v1/jobs/a1/changes", job("a2"))
    done = run("fix", "a1", *settings)
    assert done.exit_code == 0, done.stderr
    body = json.loads(failed.requests[-1].content)
    assert body == {"changes": [{name: one[name] for name in ("field", "before", "after")} for one in sent]}
    shown = done.stdout.splitlines()
    assert shown[0] == "the spec of a1 with these changes:"
    assert len(shown) == 2 + len(sent), "each difference has a line, before the new job"
    assert shown[-1] == "job a2 (digits-ddp): http://trainyard.test/jobs/a2"


def test_json_has_the_changes_and_the_job(failed, run):
    failed.on("POST", "/v1/jobs/a1/changes", job("a2"))
    printed = json.loads(run("fix", "a1", "optimizer.lr=0.1", "--json").stdout)
    assert (printed["changes"], printed["job"]["id"]) == (LOWER["changes"], "a2")


def test_another_value_than_that_of_a_fix_is_refused(failed, run):
    done = run("fix", "a1", "optimizer.lr=0.5")
    assert done.exit_code == 2
    assert "its fixes are: optimizer.lr=0.1; precision=bf16 fsdp.cpu_offload=true; batch.loaders=2" in done.stderr
    assert [request.method for request in failed.requests] == ["GET"]


def test_a_conflict_submits_nothing(failed, run):
    conflict = error(409, "job a1 has changed: `optimizer.lr` is 2", "conflict_error", "job_changed")
    failed.on("POST", "/v1/jobs/a1/changes", conflict)
    done = run("fix", "a1", "optimizer.lr=0.1")
    assert done.exit_code != 0
    assert "job a1 has changed" in done.stderr


def test_a_job_without_fixes_has_a_way_on(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", status="failed"))
    assert "trainyard fork a1 --set" in run("fix", "a1").stdout
