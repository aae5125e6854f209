"""Searches: trials are proposed, paused at rungs, continued or stopped, and nothing is proposed twice."""

from tests.integration.service.sweeps.conftest import SearchLab


def test_random_search_runs_all_trials_and_ranks_them(lab: SearchLab) -> None:
    made = lab.submit(algorithm="random", max_trials=5)
    assert (made["size"], made["state"], made["metric"], made["algorithm"]) == (0, "running", "eval/loss", "random")
    detail = lab.run()
    assert (detail["state"], detail["size"], detail["counts"]) == ("finished", 5, {"succeeded": 5})
    by_rank = sorted(detail["members"], key=lambda member: member["rank"])
    assert [member["value"] for member in by_rank] == sorted(member["value"] for member in by_rank)
    assert detail["best"] == by_rank[0]["job_id"]
    assert detail["gpu_seconds"] >= 5 * 27


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
