"""Members of sweeps in `list`, `sweeps` and `compare`, also in a terminal of 80 columns."""

from tests.unit.trainyard.fake_service import job, page
from tests.unit.trainyard.test_sweep import ID, series, sweep

OTHER = "swp_01kdvdna00az9cxjnszk8v8xyz"
JOBS = ("job_01kdvdna00az9cxjnszk8vaaaa", "job_01kdvdna00az9cxjnszk8vbbbb")


def members(**changes):
    return [
        {"job_id": id_, "values": {"optimizer.lr": lr}, "status": "succeeded", **changes}
        for id_, lr in zip(JOBS, (0.1, 0.2), strict=True)
    ]


def answer(service, *curves, **changes):
    service.on("GET", f"/v1/sweeps/{ID}", sweep({"succeeded": 2}, members=members(), **changes))
    specs = [{"optimizer": {"lr": lr}} for lr in (0.1, 0.2)]
    listed = [job(id_, spec=spec, sweep_id=ID, status="succeeded") for id_, spec in zip(JOBS, specs, strict=True)]
    service.on("GET", "/v1/jobs", page(*listed))
    service.on("GET", "/v1/metrics", {"object": "list", "data": [{"job_id": id_, "series": curves} for id_ in JOBS]})


def test_list_of_a_sweep_has_the_changed_values(run, service):
    answer(service)
    head, *rows = run("list", "--sweep", ID).stdout.splitlines()
    assert head.split()[:4] == ["JOB", "NAME", "optimizer.lr", "STATUS"]
    assert [row.split()[:3] for row in rows] == [[JOBS[0], "digits-ddp", "0.1"], [JOBS[1], "digits-ddp", "0.2"]]


def test_list_has_the_sweeps_of_jobs(run, service):
    service.on("GET", "/v1/jobs", page(job("a1", sweep_id=ID), job("a2")), page(job("a2")))
    head, member, single = run("list").stdout.splitlines()
    assert head.split()[:4] == ["JOB", "NAME", "SWEEP", "STATUS"]
    assert (member.split()[2], single.split()[2]) == (ID, "-")
    assert "SWEEP" not in run("list").stdout


def test_ids_of_sweeps_are_shortened_on_a_terminal(run, service, terminal):
    listed = [sweep({"succeeded": 30}, id=id_, fields=["optimizer.lr"]) for id_ in (ID, OTHER)]
    service.on("GET", "/v1/sweeps", page(*listed))
    done = run("sweeps")
    assert done.stdout.split()[:6] == ["SWEEP", "NAME", "JOBS", "FIELDS", "CREATED", "BY"]
    assert (ID[-8:] in done.stdout, ID in done.stdout, done.stderr) == (True, False, "")


def test_ids_of_members_are_shortened_on_a_terminal(run, service, terminal):
    answer(service)
    shown = run("sweeps", ID).stdout
    assert (JOBS[0][-8:] in shown, JOBS[0] in shown) == (True, False)


def test_columns_without_room_are_named(run, service, terminal):
    long = {"name": "a long name of a sweep " * 3, "fields": ["optimizer.lr", "schedule.warmup_steps"]}
    counts = dict.fromkeys(("succeeded", "failed", "cancelled"), 100)
    service.on("GET", "/v1/sweeps", page(sweep(counts, created_by="a-user-of-the-cluster", **long)))
    done = run("sweeps")
    assert "BY" not in done.stdout.split()
    assert done.stderr == "note: 80 columns have no room for BY, CREATED; use a wider terminal or --json\n"


def test_a_sweep_is_compared_by_its_metric(run, service):
    answer(service, series("eval/loss", 3.0, 0.1), series("eval/accuracy", 0.5, 0.9), metric="eval/accuracy")
    assert run("compare", "--sweep", ID).stdout.startswith("eval/accuracy\n")


def test_a_sweep_without_points_of_its_metric_is_compared_by_the_loss(run, service):
    answer(service, series("eval/loss", 3.0, 0.1), metric="eval/accuracy")
    assert run("compare", "--sweep", ID).stdout.startswith("eval/loss\n")


def test_comparison_of_a_sweep_has_minimum_and_maximum_in_80_columns(run, service, terminal):
    answer(service, series("eval/loss", 3.0, 0.1), metric="eval/loss")
    done = run("compare", "--sweep", ID)
    assert done.stdout.splitlines()[1].split() == ["JOB", "optimizer.lr", "STATUS", "LAST", "MIN", "MAX", "CURVE"]
    assert max(map(len, done.stdout.splitlines())) <= 80
