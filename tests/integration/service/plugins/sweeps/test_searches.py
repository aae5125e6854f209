"""Searches: trials are proposed, paused at rungs, continued or stopped, and nothing is proposed twice."""

import itertools
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from service.core.errors import InvalidRequestError
from service.core.failpoints import no_failpoint
from service.db.models import SweepTrial
from tests.integration.service.plugins.sweeps.conftest import SEARCH_SPEC, SearchLab
from tests.support.world import SPEC, World

# On Postgres, the searches of a killed service run all SQL of random and halving searches.
pytestmark = pytest.mark.databases("sqlite")


def test_random_search_runs_all_trials_and_ranks_them(lab: SearchLab) -> None:
    made = lab.submit(algorithm="random", max_trials=5)
    assert (made["size"], made["state"], made["metric"], made["algorithm"]) == (0, "running", "eval/loss", "random")
    detail = lab.run()
    assert (detail["state"], detail["size"], detail["counts"]) == ("finished", 5, {"succeeded": 5})
    by_rank = sorted(detail["members"], key=lambda member: member["rank"])
    assert [member["value"] for member in by_rank] == sorted(member["value"] for member in by_rank)
    assert detail["best"] == by_rank[0]["job_id"]
    assert detail["gpu_seconds"] >= 5 * 27


@pytest.mark.cpu_seconds(6)
def test_asha_pauses_at_rungs_and_continues_the_best(lab: SearchLab) -> None:
    detail = lab.submit(algorithm="asha", max_trials=9, max_parallel=3)
    assert detail["rung_steps"] == [1, 3, 9]
    detail = lab.run()
    states = sorted(member["state"] for member in detail["members"])
    assert states.count("completed") >= 1
    assert set(states) == {"completed", "stopped_early"}
    best = next(member for member in detail["members"] if member["rank"] == 1)
    assert (best["state"], list(best["rungs"])) == ("completed", ["1", "3", "9"])
    distances = sorted(abs(member["values"]["optimizer.lr"] - 0.01) for member in detail["members"])
    assert abs(best["values"]["optimizer.lr"] - 0.01) == distances[0]
    stopped = next(member for member in detail["members"] if member["state"] == "stopped_early")
    job = lab.world.job(stopped["job_id"])
    assert (job["status"], job["status_reason"]) == ("cancelled", "stopped_early")
    assert "Stopped early at step" in job["status_message"]


def test_a_search_on_a_busy_host_states_why_it_waits(lab: SearchLab) -> None:
    made = lab.submit(algorithm="random", max_trials=2)
    searcher = lab.world.new_searcher()

    def too_slow(*_arguments: Any) -> None:
        raise InvalidRequestError("takes too long", code="too_expensive")

    searcher.run_in_process = too_slow
    lab.world.reconciler.lease.acquire(lab.world.clock())
    searcher.run_once()
    message = lab.world.client.get(f"/v1/sweeps/{made['id']}").json()["message"]
    assert message == "Waiting: the next proposal was not computed in time; the host of the service is busy"
    assert lab.run()["state"] == "finished"


_SPARE_KILLS = 4
"""The kills end before the trials by as many, since not every failpoint is passed at once."""
FAILPOINTS = (
    *("search.after-proposal", "search.before-trial", "search.after-trial"),
    *("search.before-moves", "search.after-moves"),
)


@pytest.mark.databases
@pytest.mark.cpu_seconds(5)
@pytest.mark.parametrize(
    ("algorithm", "kills", "trials"),
    [
        ("tpe", 8, 5),
        ("asha", 8, 5),
        pytest.param("asha", 20, 15, marks=pytest.mark.slow),
        pytest.param("tpe", 20, 30, marks=pytest.mark.slow),
    ],
)
def test_a_service_that_is_killed_proposes_nothing_twice_and_loses_nothing(
    lab: SearchLab, algorithm: str, kills: int, trials: int
) -> None:
    undisturbed = run_with_kills(lab, algorithm, kills=0, trials=trials)
    killed = run_with_kills(lab, algorithm, kills=kills, trials=trials)
    assert [member["number"] for member in killed["members"]] == list(range(trials))
    jobs = [member["job_id"] for member in killed["members"]]
    listed = lab.world.client.get("/v1/jobs", params={"sweep": lab.id, "limit": 200}).json()["data"]
    assert sorted(jobs) == sorted(job["id"] for job in listed)
    assert len(set(jobs)) == trials
    # The same proposals: each is drawn from the trials before it alone.
    assert [member["values"] for member in killed["members"]] == [one["values"] for one in undisturbed["members"]]
    assert [member["state"] for member in killed["members"]] == [one["state"] for one in undisturbed["members"]]


@pytest.mark.slow
@pytest.mark.databases("postgres")
def test_many_kills_change_no_proposal(lab: SearchLab) -> None:
    test_a_service_that_is_killed_proposes_nothing_twice_and_loses_nothing(lab, "asha", 20, 15)


def run_with_kills(lab: SearchLab, algorithm: str, *, kills: int, trials: int) -> dict[str, Any]:
    """Run a search. The service ends at a failpoint that often, all over the search, and is started again each time."""
    lab.submit(algorithm=algorithm, max_trials=trials, max_parallel=1)
    points = itertools.cycle(FAILPOINTS if algorithm == "asha" else FAILPOINTS[:3])
    left, size = kills, 0
    for _ in range(40 * trials):
        if left and size * (kills + _SPARE_KILLS) >= (kills - left) * trials:
            lab.world.fail_at(next(points))
        try:
            lab.world.search()
        except SystemExit:
            left -= 1
            lab.world.reconciler = lab.world.new_reconciler("one")
            continue
        finally:
            lab.world.app_state.failpoint = no_failpoint
        lab.world.tick()
        lab.work()
        lab.world.tick(2)
        if (detail := lab.read())["state"] != "running":
            assert left == 0
            return detail
        size = detail["size"]
    raise AssertionError(f"the search did not end: {lab.read()}")


@pytest.mark.databases
def test_the_database_refuses_a_number_twice(lab: SearchLab) -> None:
    lab.submit(algorithm="random", max_trials=3)
    lab.world.search()
    row = {"sweep_id": lab.id, "number": 0, "values": {}, "created_at": lab.world.clock()}
    with pytest.raises(IntegrityError), lab.world.database.write() as session:
        session.add(SweepTrial(**row))


def test_cancelled_search_proposes_nothing_more(lab: SearchLab) -> None:
    lab.submit(algorithm="tpe", max_trials=9)
    lab.world.search()
    assert lab.world.client.post(f"/v1/sweeps/{lab.id}/cancel").json()["state"] == "cancelled"
    lab.world.search(3)
    lab.world.tick(2)
    assert lab.read()["counts"] == {"cancelled": 1}


def test_gpu_hours_end_a_search(lab: SearchLab) -> None:
    lab.submit(algorithm="random", max_trials=50, max_gpu_hours=27 * 4 / 3600)
    detail = lab.run()
    assert (detail["state"], detail["message"]) == ("finished", "Finished: max_gpu_hours (0.03) is spent.")
    assert 4 <= detail["size"] <= 6


def test_an_early_stopped_trial_can_be_retried_to_its_end(lab: SearchLab) -> None:
    lab.submit(algorithm="asha", max_trials=3, max_parallel=3)
    stopped = next(member for member in lab.run()["members"] if member["state"] == "stopped_early")
    answer = lab.world.client.post(f"/v1/jobs/{stopped['job_id']}/retry", json={"from": "checkpoint"})
    assert answer.json()["status"] == "queued"
    lab.world.tick(2)
    assert lab.world.launch_document(stopped["job_id"]).pause_at_step is None


def test_a_trial_that_a_user_resumes_runs_to_its_end(lab: SearchLab) -> None:
    lab.submit(algorithm="asha", max_trials=2, max_parallel=1)
    lab.world.search()
    lab.world.tick()
    lab.work()
    lab.world.tick(2)
    job = lab.read()["members"][0]["job_id"]
    assert (lab.world.job(job)["status"], lab.world.job(job)["desired"]) == ("paused", "paused")
    assert lab.world.client.post(f"/v1/jobs/{job}/resume").status_code == 202
    lab.world.tick(2)
    assert lab.world.launch_document(job).pause_at_step is None


def test_quota_of_queued_jobs_delays_a_search(lab: SearchLab) -> None:
    lab.world.app_state.settings.max_queued_per_user = 1
    lab.submit(algorithm="random", max_trials=3, max_parallel=3)
    lab.world.search(3)
    assert lab.read()["size"] == 1
    assert "the quota is 1 per user" in lab.read()["message"]
    assert lab.run()["size"] == 3


def test_spec_is_checked_at_the_ends_of_all_ranges(lab: SearchLab) -> None:
    body = {"spec": SEARCH_SPEC, "search": {"space": {"gpus": "choice:1,2,-1", "optimizer.lr": "log:1e-4:1"}}}
    error = lab.world.client.post("/v1/sweeps", json=body).json()
    assert [problem["param"] for problem in error["problems"]] == ["spec.gpus"]
    assert "at gpus=-1" in error["problems"][0]["message"]


@pytest.mark.parametrize(
    ("spec", "search", "param"),
    [
        ({"evaluation": {}}, {"algorithm": "asha"}, "spec.evaluation.every_steps"),
        ({"steps": None, "epochs": 1}, {"algorithm": "asha"}, "spec.steps"),
        ({}, {"algorithm": "asha", "space": {"steps": "choice:9,27"}}, "search.space.steps"),
        ({}, {"algorithm": "hyperband", "min_steps": 27}, "search.min_steps"),
        ({}, {"algorithm": "tpe", "min_steps": 3}, "search"),
        ({}, {"algorithm": "grid"}, "search"),
        ({}, {"space": {"optimizer.lr": "log:0:1"}}, "search.space.optimizer.lr"),
        ({}, {"space": {"optimizer.lr": "uniform:0:1 if seed=1"}}, "search.space"),
        ({}, {"max_trials": 1001}, "search.max_trials"),
    ],
)
def test_impossible_searches_are_refused_with_the_field(lab: SearchLab, spec, search, param) -> None:
    space = {"space": {"optimizer.lr": "log:1e-4:1e-1"}}
    body = {"spec": {**SEARCH_SPEC, **spec}, "search": {**space, **search}}
    answer = lab.world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"].startswith(param)


def test_grid_stores_numbers_for_numbers_in_text(world: World) -> None:
    body = {"spec": SPEC, "grid": {"optimizer.lr": ["1e-2", "3e-3"]}}
    made = world.client.post("/v1/sweeps", json=body).json()
    assert [member["values"] for member in made["members"]] == [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.003}]
    assert (made["algorithm"], made["state"]) == ("grid", "running")


def test_members_of_a_grid_are_ranked(world: World) -> None:
    made = world.client.post("/v1/sweeps", json={"spec": SPEC, "grid": {"seed": [0, 1]}}).json()
    for member, loss in zip(made["members"], (0.5, 0.25), strict=True):
        world.start(member["job_id"]).metrics([("train/loss", 1, loss)])
    detail = world.client.get(f"/v1/sweeps/{made['id']}").json()
    assert ([member["rank"] for member in detail["members"]], detail["metric"]) == ([2, 1], "train/loss")
    assert detail["best"] == made["members"][1]["job_id"]
