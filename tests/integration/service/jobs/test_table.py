"""The runs table: queries, sorts and columns over fields, parameters, tags and metrics, in pages."""

import random
import re
from itertools import product
from typing import Any

import pytest

from service.metrics.summaries import back_fill
from tests.support.statements import statements_of_request
from tests.support.world import World

pytestmark = pytest.mark.databases


def refresh(world: World) -> None:
    """Bring the values of all jobs' metrics up to date, as the service's thread does."""
    after: int | None = 0
    while after is not None:
        after = back_fill(world.database, after)


def listed(world: World, **params: Any) -> list[str]:
    """Return the names of all jobs that match, over pages of three."""
    names: list[str] = []
    after = None
    while True:
        page = {"limit": 3, **({"after": after} if after else {})}
        answer = world.client.get("/v1/jobs", params={**params, **page})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        names += [job["name"] for job in body["data"]]
        if not body["has_more"]:
            return names
        after = body["last_id"]


def refused(world: World, **params: Any) -> dict[str, Any]:
    answer = world.client.get("/v1/jobs", params=params)
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.fixture
def runs(world: World) -> World:
    """Six jobs: learning rates 0.1 to 0.001 by two seeds; all but the last report `eval/loss`, the third NaN."""
    jobs = []
    for number, (rate, seed) in enumerate(product([0.1, 0.01, 0.001], [0, 1])):
        jobs.append(world.submit(name=f"r{number}", seed=seed, optimizer={"lr": rate}, metadata={"team": "nlp"}))
        world.clock.advance(60)
        if number == 4:
            world.tick()
    world.scheduler.set_states("running")
    for number, job in enumerate(jobs[:5]):
        worker = world.worker(job)
        worker.claim()
        values = [3.0 - number, 1.0 + number, "NaN" if number == 2 else 2.0 + number / 10]
        worker.metrics([("eval/loss", step, value) for step, value in enumerate(values, 1)])
        worker.post(
            "parameters", {"execution": 1, "parameters": {"width": str(2**number)}, "tags": {f"t{number % 2}": ""}}
        )
    refresh(world)
    return world


def test_fields_parameters_tags_and_metrics_filter(runs: World) -> None:
    assert listed(runs, where="optimizer.lr < 0.05") == ["r5", "r4", "r3", "r2"]
    assert listed(runs, where="optimizer.lr < 5e-2 and seed = 1") == ["r5", "r3"]
    assert listed(runs, where="width >= 4 and width < 1e1") == ["r3", "r2"]
    assert listed(runs, where='tag = "t1" or name = r0') == ["r3", "r1", "r0"]
    assert listed(runs, where="eval/loss > 2 and eval/loss < 2.2") == ["r1"]
    assert listed(runs, where="eval/loss = NaN") == ["r2"]
    assert listed(runs, where="min(eval/loss) <= 0") == ["r4", "r3"]
    assert listed(runs, where="not exists eval/loss") == ["r5"]
    assert listed(runs, where="metadata.team = nlp and not (seed = 0 or tag = t1)") == ["r5"]
    assert listed(runs, where="name ~ R and name not in (r1, r2, r3)") == ["r5", "r4", "r0"]
    assert listed(runs, where="created > -150s and user = admin") == ["r5", "r4"]
    assert listed(runs, where="optimizer.name != adamw") == []


def test_what_the_table_shows_is_queried_by_its_name(runs: World) -> None:
    jobs = {job["name"]: job["id"] for job in runs.client.get("/v1/jobs").json()["data"]}
    assert listed(runs, where="age < 150s") == ["r5", "r4"]
    assert listed(runs, where="age >= 4min and age <= 1w") == ["r2", "r1", "r0"]
    assert listed(runs, sort="age") == listed(runs, sort="-created")
    assert listed(runs, sort="-age") == listed(runs, sort="created")
    runs.clock.advance(3600)
    assert listed(runs, where="runtime >= 1h and seed = 0") == ["r4", "r2", "r0"], "of running jobs, until now"
    assert listed(runs, where="runtime > 61min") == []
    assert runs.client.patch(f"/v1/jobs/{jobs['r1']}", json={"notes": "My First run"}).status_code == 200
    assert runs.client.patch(f"/v1/jobs/{jobs['r2']}", json={"notes": ""}).status_code == 200
    assert listed(runs, where="notes ~ first") == ["r1"]
    assert listed(runs, where="notes is not empty") == ["r1"]
    assert len(listed(runs, where="notes is empty")) == 5
    failed = runs.worker(jobs["r3"])
    failed.end("error", failure={"type": "E", "message": "mat1 and mat2 shapes cannot be multiplied", "final": True})
    runs.tick()
    assert listed(runs, where='error ~ "MAT1 and"') == ["r3"]
    assert listed(runs, where="error is not empty") == ["r3"]
    shown = runs.client.get("/v1/jobs", params={"where": "name = r3", "columns": ["error", "notes", "age"]}).json()
    values = shown["data"][0]["values"]
    assert "mat1" in values["error"]
    assert (values["notes"], values["age"] > 3600) == (None, True)


def test_states_of_values(runs: World) -> None:
    assert listed(runs, where="eval/loss is nan") == ["r2"]
    assert listed(runs, where="eval/loss is not nan") == ["r4", "r3", "r1", "r0"]
    assert listed(runs, where="eval/loss is empty") == ["r5"]
    assert listed(runs, where="not (eval/loss is empty or eval/loss is nan)") == ["r4", "r3", "r1", "r0"]
    assert listed(runs, where="eval/loss is inf") == []
    assert listed(runs, where="tag is empty") == ["r5"]


def test_diverged_runs_match_whatever_their_metrics_are_called(world: World) -> None:
    curves: dict[str, list[tuple[str, list[Any]]]] = {
        "sound": [("ppl", [3.0, -2.0]), ("train/grad_norm", ["Infinity", 1.0]), ("perf/gpu", ["NaN", 1.0])],
        "system": [("system/node1/gpu0", ["NaN", 1.0])],
        "last": [("score", [1.0, "-Infinity"])],
        "between": [("ppl", [3.0, "NaN", 2.0])],
        "above": [("Grammar", [3.0, "Infinity", 2.0])],
        "verdict": [("ppl", [3.0])],
        "cause": [("ppl", [3.0])],
        "queued": [],
    }
    for name in curves:
        job = world.submit(name=name)
        if name == "queued":
            break
        worker = world.start(job)
        for metric, values in curves[name]:
            worker.metrics([(metric, step, value) for step, value in enumerate(values, 1)])
        if name in ("verdict", "cause"):
            error = "DivergedError" if name == "verdict" else "TrainingError"
            worker.end("error", failure={"type": error, "message": "the loss became NaN", "final": True})
        else:
            worker.end("completed")
        world.tick()
    refresh(world)
    diverged = ["verdict", "above", "between", "last"]
    assert listed(world, where="diverged = true") == diverged
    assert listed(world, where="diverged != false and age < 7d") == diverged
    assert listed(world, where="not diverged = true") == ["queued", "cause", "system", "sound"]
    assert listed(world, where="diverged = false and status = failed") == ["cause"]
    assert "`diverged` is compared by = with true or false" in refused(world, where="diverged > 1")["message"]
    assert "cannot be sorted by `diverged`" in refused(world, sort="diverged")["message"]
    shown = world.client.get("/v1/jobs", params={"columns": "diverged"}).json()["data"]
    assert [job["name"] for job in shown if job["values"]["diverged"]] == diverged


def test_jobs_match_the_nodes_of_all_their_attempts(world: World) -> None:
    for name, attempts in (("moved", ("gpu-1", "gpu-[2,17]")), ("stayed", ("gpu-17",)), ("waiting", ())):
        job = world.submit(name=name)
        for nodes in attempts:
            world.tick()
            world.scheduler.set_states("running")
            worker = world.worker(job)
            worker.execution = worker.claim(nodes=nodes).json()["execution"]
            worker.end("preempted" if nodes == "gpu-1" else "completed")
            world.tick()
            world.clock.advance(3600)
    for where, names in {
        "node = gpu-1": ["moved"],
        "nodes = GPU-17": ["stayed", "moved"],
        "node != gpu-1": ["stayed"],
        "not node = gpu-1": ["waiting", "stayed"],
        "node in (gpu-2, gpu-3)": ["moved"],
        "node not in (gpu-2, gpu-3)": ["stayed"],
        "node ~ 17 and status = succeeded": ["stayed", "moved"],
        "node !~ 2": ["stayed"],
        "node is empty": ["waiting"],
        "exists nodes or name = waiting": ["waiting", "stayed", "moved"],
        'node = "gpu-1%"': [],
    }.items():
        assert listed(world, where=where) == names, where
    assert "write `parameters.nodes` or" in refused(world, where="nodes > 2")["message"]
    assert "nodes, tags" in refused(world, sort="node")["message"]
    shown = world.client.get("/v1/jobs", params={"columns": "node"}).json()["data"]
    assert [job["values"]["node"] for job in shown] == [None, "gpu-17", "gpu-2, gpu-17"]


def test_a_node_with_other_characters_than_ascii_matches(world: World) -> None:
    job = world.submit(name="local")
    world.tick()
    world.scheduler.set_states("running")
    answer = world.worker(job).post("claim", {"nonce": "nonce-0001", "host": "größe-1", "pid": 7})
    assert answer.status_code == 200, answer.text
    for where in ('node = "größe-1"', 'node ~ "röß"', 'node in ("größe-1", b)', 'node !~ "rösse"'):
        assert listed(world, where=where) == ["local"], where


def test_jobs_match_the_step_that_they_have_reached(world: World) -> None:
    for name, step in (("ended", 2**53 - 1), ("begun", 5), ("waiting", None)):
        job = world.submit(name=name)
        if step is not None:
            progress = {"step": step, "total_steps": 2**53 - 1, "seconds_per_step": 0.1, "phase": "training"}
            worker = world.start(job)
            worker.metrics([("ppl", step, 1.0)], progress=progress)
            worker.end("completed", step=step)
            world.tick()
    assert listed(world, where=f"step = {2**53 - 1}") == ["ended"]
    assert listed(world, where="progress < 20") == ["begun"]
    assert listed(world, where=f"step in (5, {2**53 - 1}) and step != 5") == ["ended"]
    assert listed(world, where="step is empty") == ["waiting"]
    assert "is a number of steps" in refused(world, where="step > 5.5")["message"]
    assert "is no text" in refused(world, where="step ~ 5")["message"]
    shown = world.client.get("/v1/jobs", params={"columns": "step"}).json()["data"]
    assert [job["values"]["step"] for job in shown] == [None, 5, 2**53 - 1]


def test_a_job_that_returned_to_before_the_divergence_is_sound(world: World) -> None:
    worker = world.start(world.submit(name="resumed"))
    worker.metrics([("ppl", 1, 2.0), ("ppl", 2, "NaN"), ("ppl", 3, 2.0)])
    refresh(world)
    assert listed(world, where="diverged = true") == ["resumed"]
    worker.execution = 2
    worker.metrics([("ppl", 2, 1.0)], resumed=1)
    refresh(world)
    assert listed(world, where="diverged = true") == []


def test_sweeps_are_named_by_name_or_id(world: World) -> None:
    alone = world.submit(name="alone")
    spec = world.client.get(f"/v1/jobs/{alone}").json()["spec"]
    body = {"name": "rates", "spec": {**spec, "name": "member"}, "grid": {"seed": [1, 2]}}
    sweep = world.client.post("/v1/sweeps", json=body).json()["id"]
    for where in ("sweep = rates", f"sweep = {sweep}", "sweep ~ RATE", "sweep in (other, rates)", "exists sweep"):
        assert listed(world, where=where) == ["member", "member"], where
    for where in ("sweep = other", "sweep != rates", "sweep !~ rate"):
        assert listed(world, where=where) == [], where
    assert listed(world, where="not sweep = rates") == ["alone"]


def test_defaults_that_a_program_ignores_do_not_match(runs: World) -> None:
    program = {"task": "script", "gpus": 1, "argv": ["/bin/true"], "name": "program"}
    assert runs.client.post("/v1/jobs", json=program).status_code == 201
    assert listed(runs, where="optimizer.lr < 1") == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert listed(runs, where="exists seed") == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert listed(runs, where="task = script") == ["program"]


def test_every_sort_has_jobs_without_a_value_last(runs: World) -> None:
    assert listed(runs, sort="eval/loss") == ["r0", "r1", "r3", "r4", "r2", "r5"]
    assert listed(runs, sort="-eval/loss") == ["r4", "r3", "r1", "r0", "r2", "r5"]
    assert listed(runs, sort="min(eval/loss)")[-1] == "r5"
    assert listed(runs, sort="-optimizer.lr") == ["r1", "r0", "r3", "r2", "r5", "r4"]
    assert listed(runs, sort="-name", where="seed = 0") == ["r4", "r2", "r0"]
    assert listed(runs, sort="runtime") == [f"r{number}" for number in range(6)]
    assert listed(runs, sort="name", status="running") == [f"r{number}" for number in range(5)]


def test_columns_return_the_values(runs: World) -> None:
    columns = [
        "optimizer.lr",
        "eval/loss",
        "best(eval/loss)",
        "best_step(eval/loss)",
        "width",
        "tag",
        "status",
        "runtime",
    ]
    answer = runs.client.get("/v1/jobs", params={"columns": columns, "sort": "name", "brief": "true"}).json()["data"]
    assert answer[0]["spec"] == {}
    assert answer[1]["values"] == {
        "optimizer.lr": 0.1,
        "eval/loss": 2.1,
        "best(eval/loss)": 2.0,
        "best_step(eval/loss)": 1,
        "width": 2,
        "tag": "t1",
        "status": "running",
        "runtime": 0.0,
    }
    assert answer[2]["values"]["eval/loss"] == "NaN"
    assert answer[5]["values"]["eval/loss"] is None


@pytest.mark.databases("sqlite")
def test_errors_name_the_column_and_the_nearest_key(runs: World) -> None:
    error = refused(runs, where="seed = 1 and optimiser.lr < 1")
    assert (error["param"], error["code"]) == ("where", "unknown_key")
    assert "`optimizer.lr`" in error["message"]
    assert "column 14" in error["message"]
    assert "did you mean `optimizer.lr`" in refused(runs, sort="lr")["message"]
    assert "did you mean `eval/loss`" in refused(runs, columns="loss")["message"]
    assert "did you mean `status`?" in refused(runs, where="state = running")["message"]
    assert refused(runs, where="seed = ")["code"] == "invalid_query"
    assert "duration" in refused(runs, where="created > 7")["message"]


@pytest.mark.databases("sqlite")
def test_error_of_a_sort_states_by_what_jobs_can_be_sorted(runs: World) -> None:
    for sort in ("step", "-progress", "notes", "error", "-tags", "tag", "node", "zzz"):
        error = refused(runs, sort=sort)
        begin = f"jobs cannot be sorted by `{sort.removeprefix('-')}`; sort by name, project, status, "
        assert error["message"].startswith(begin), sort
        assert "progress, errors, notes, nodes, tags and `diverged` have no order" in error["message"]
        assert (error["param"], error["code"]) == ("sort", "unknown_key")
    assert "did you mean `optimizer.lr`?" in refused(runs, sort="-optimiser.lr")["message"]


@pytest.mark.databases("sqlite")
def test_columns_joined_by_commas_are_answered_with_repeated_parameters(runs: World) -> None:
    for columns in ("seed,eval/loss", "tags.a,seed", "min(eval/loss),max(eval/loss)"):
        error = refused(runs, columns=columns)
        assert "give each column by itself: columns=" in error["message"]
        assert (error["param"], error["code"]) == ("columns", "unknown_key")
        assert len(listed(runs, columns=columns.split(","))) == 6


IMPOSSIBLE = {
    "status = finished": "no status is `finished`; did you mean `succeeded`?",
    "status in (running, Error)": "no status is `Error`; did you mean `failed`?",
    "not (status != runing)": "no status is `runing`; did you mean `running`?",
    "status = 7": "no status is `7`; there are queued, submitting",
    "status < running": "statuses have no order; compare them by =, !=, ~ or in",
    "created > 1d": "`created > -7d` is since a week ago",
    "created = '2026-01-31'": '`created` is a time: compare it by < or >, such as `created > "2026-01-31"`',
    "started in (-1d)": "`started` is a time: compare it by < or >",
    "runtime > -2h": "`runtime` is a duration",
    "age = 2h": "`age` is a duration: compare it by < or >, such as `age < 2h`",
    "age in (1h, 2h)": "`age` is a duration",
    "age < -2h": "`age` is a duration",
    "error < 0.5": "`error` is a text: compare it by ~; for a metric of that name, write `metrics.error`",
    "notes = 3": "`notes` is a text",
    "eval/loss is 3": "expected nan, inf or empty after `is`, not `3`; to compare with a value, write `eval",
    "eval/loss = 'abc'": "`eval/loss` is a number; compare it with one such as 0.5, not with `abc` (column 1)",
    "precision = bf17": "no `precision` is `bf17`; did you mean `bf16`?",
    "tag < a": "tags are compared by =, !=, ~ and in, not by <",
    "data.sources.weight > 1": "no job has `data.sources.weight`",
    # No job is called so, which is found without a look at the other condition.
    "name = nobody and created > 7": "`created` is a time",
    "exists metrics.nothing and eval/loss = abc": "`eval/loss` is a number",
}


@pytest.mark.databases("sqlite")
def test_conditions_that_no_job_can_meet_are_errors(runs: World) -> None:
    answers = {where: refused(runs, where=where)["message"] for where in IMPOSSIBLE}
    assert {where: answers[where] for where, message in IMPOSSIBLE.items() if message not in answers[where]} == {}


def test_a_part_of_a_status_and_a_time_in_the_past_are_no_errors(runs: World) -> None:
    assert len(listed(runs, where="status ~ run and created > -7d and created != '2026-01-31 10:00'")) == 5


def test_texts_that_numbers_allow_and_numbers_in_texts_match(world: World) -> None:
    job = world.submit(name="one", batch={"size": 4, "micro_size": 2}, metadata={"round": "7"})
    world.start(job).post("parameters", {"execution": 1, "parameters": {"width": "8"}, "tags": {"7": "3"}})
    for where in (
        "metadata.round = 7",
        "metadata.round in (6, 7)",
        "tags.7 = 3",
        "tag = 7",
        "tags in (7)",
        "width = 8",
    ):
        assert listed(world, where=where.replace("tags.7", "`tags.7`")) == ["one"], where
    for where in ("metadata.round != 7", "batch.micro_size = auto", "tag != 7", "eval/loss != NaN and seed = 1"):
        assert listed(world, where=where.replace("eval/", "metrics.eval/")) == [], where


def test_the_filter_by_a_sweep_compares_its_id_alone(world: World) -> None:
    spec = world.job(world.submit(name="alone"))["spec"]
    body = {"name": "rates", "spec": {**spec, "name": "member"}, "grid": {"seed": [1, 2]}}
    sweep = world.client.post("/v1/sweeps", json=body).json()["id"]
    for columns in ({}, {"columns": "seed"}):
        assert listed(world, sweep=sweep, **columns) == ["member", "member"]
        assert listed(world, sweep="rates", **columns) == []


def test_a_resume_replaces_what_it_hides(world: World) -> None:
    job = world.submit(name="resumed")
    worker = world.start(job)
    worker.metrics([("eval/loss", step, float(-step)) for step in range(1, 11)])
    refresh(world)
    assert listed(world, where="min(eval/loss) = -10 and min_step(eval/loss) = 10") == ["resumed"]
    worker.metrics([("eval/loss", 6, 5.0)], execution=2, resumed=5)
    refresh(world)
    assert listed(world, where="min(eval/loss) = -5 and eval/loss = 5 and max_step(eval/loss) = 6") == ["resumed"]
    worker.metrics([("eval/loss", 7, 9.0)], execution=2, resumed=5)
    refresh(world)
    assert listed(world, where="max(eval/loss) = 9 and eval/loss = 9") == ["resumed"]


def test_pages_agree_with_a_plain_filter_whichever_index_leads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    rows = []
    for number in range(24):
        rate, seed = chance.choice([0.1, 0.2, 0.3]), chance.choice([0, 1])
        world.submit(name=f"j{number:02}", seed=seed, optimizer={"lr": rate})
        rows.append((f"j{number:02}", rate, seed))
    expected = [name for name, rate, seed in sorted(rows, key=lambda row: (row[1], row[0])) if rate < 0.3 and seed == 1]
    for few in (4000, 0):
        monkeypatch.setattr("service.jobs.table.pages.FEW", few)
        where = "optimizer.lr < 0.3 and seed = 1"
        assert listed(world, where=where, sort="optimizer.lr") == expected
        assert listed(world, where=where, sort="-optimizer.lr") == expected[::-1]
        assert listed(world, where=where, sort="name") == sorted(expected)
        assert listed(world, where=where, sort="-metrics.width") == sorted(expected, reverse=True)
        assert listed(world, where=f"not ({where}) and name ~ j", sort="status") == [
            name for name, *_ in rows if name not in expected
        ]


@pytest.mark.cpu_seconds(5)
def test_deleted_jobs_and_values_of_a_retry_from_scratch_disappear(world: World) -> None:
    job = world.submit(name="gone")
    worker = world.start(job)
    worker.metrics([("eval/loss", 1, 0.5)])
    worker.end("error", failure={"type": "ValueError", "message": "it failed"})
    world.client.post(f"/v1/jobs/{job}/cancel")
    for _ in range(3):
        world.reconciler.run_once()
    refresh(world)
    assert listed(world, where="exists eval/loss") == ["gone"]
    if world.job(job)["status"] in ("failed", "cancelled"):
        assert world.client.post(f"/v1/jobs/{job}/retry", json={"from": "scratch"}).status_code == 202
    refresh(world)
    assert listed(world, where="exists metrics.eval/loss") == []
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.reconciler.run_once()
    assert world.client.delete(f"/v1/jobs/{job}").status_code == 204
    assert listed(world, sort="optimizer.lr") == []
    assert listed(world, where="name = gone") == []
    assert listed(world, where="seed = 0", sort="-name", archived="all") == []


def test_statements_that_write_values_have_one_row_each(world: World) -> None:
    """They are compiled once. To compile one with all rows of a job takes longer than to run it."""
    with statements_of_request("INSERT INTO jobs ") as statements:
        world.submit()
    of_values = [text for text in statements if re.match("INSERT INTO (value_keys|job_values) ", text)]
    assert {len(re.findall(r"\?|%\(", text)) for text in of_values} == {2, 4}
