"""The fault campaign: 32 scenarios by number, each with the tests that prove it, and tests of those that had none.

`SCENARIOS` is the list; a test makes sure that every named test exists.
"""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from service.core.errors import LeaseLostError, UnavailableError
from service.db.leader_lease import LeaderLease
from service.scheduler.base import Ambiguous, Observation
from tests.support.world import World

ROOT = Path(__file__).parents[2]
FAULTS, SLURM, SERVICE, WORKER = "tests/faults", "tests/slurm", "tests/integration/service", "tests/integration/worker"
HAND_OVER, RECONCILE = f"{SERVICE}/test_hand_over.py", f"{SERVICE}/test_reconcile.py"

SCENARIOS: dict[int, tuple[str, list[str]]] = {
    1: ("killed before the job is committed", [f"{FAULTS}/test_crashes.py::test_killed_at"]),
    2: (
        "killed after the commit, before sbatch",
        [f"{HAND_OVER}::test_a_crash_between_the_intention_and_the_question_costs_no_waiting"],
    ),
    3: (
        "killed after sbatch, before the id is recorded",
        [f"{SLURM}/test_submission.py::test_a_service_killed_between_sbatch_and_the_record_adopts_its_job"],
    ),
    4: (
        "sbatch fails although it was accepted",
        [f"{SLURM}/test_submission.py::test_a_lost_answer_never_doubles_a_job"],
    ),
    5: (
        "sbatch fails and was not accepted",
        [f"{RECONCILE}::test_on_slurm_an_ambiguous_submission_is_repeated_only_after_three_clean_looks_in_180_s"],
    ),
    6: ("sbatch hangs", [f"{HAND_OVER}::test_an_sbatch_that_hangs_holds_up_nothing_else"]),
    7: ("an id and an error", [f"{SLURM}/test_submission.py::test_a_lost_answer_never_doubles_a_job"]),
    8: (
        "two Slurm jobs for one attempt",
        [
            f"{HAND_OVER}::test_of_two_entries_the_one_that_claimed_is_watched",
            f"{HAND_OVER}::test_the_end_of_a_refused_double_is_not_the_end_of_the_attempt",
            f"{FAULTS}/test_crashes.py::test_killed_at",
        ],
    ),
    9: (
        "a leader that was stopped goes on",
        [
            f"{HAND_OVER}::test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on",
            f"{HAND_OVER}::test_a_stopped_leaders_answer_is_not_recorded_over_the_next_ones",
            f"{FAULTS}/test_scenarios.py::test_09_a_tick_that_was_stopped_in_the_middle_applies_nothing",
        ],
    ),
    10: (
        "slurmctld down for 30 minutes",
        [
            f"{SLURM}/test_first_path.py::test_an_outage_of_the_controller_concludes_nothing",
            f"{FAULTS}/test_scenarios.py::test_10_half_an_hour_without_the_controller",
        ],
    ),
    11: (
        "slurmdbd down or absent",
        [
            f"{SLURM}/test_witnesses.py::test_without_an_answer_from_the_accounting_nothing_is_concluded",
            f"{SLURM}/test_witnesses.py::test_the_last_word_on_disk_counts",
        ],
    ),
    12: ("sacct lags", [f"{FAULTS}/test_scenarios.py::test_12_an_id_that_is_not_listed_for_five_minutes"]),
    13: (
        "forgotten before we looked",
        [
            f"{SLURM}/test_witnesses.py::test_the_accounting_says_how_a_forgotten_job_ended",
            f"{SLURM}/test_witnesses.py::test_without_a_last_word_either_nothing_is_guessed",
        ],
    ),
    14: ("preempted", [f"{SLURM}/test_witnesses.py::test_where_preemption_would_requeue_the_service_continues_it"]),
    15: ("PreemptMode=CANCEL", [f"{SLURM}/test_first_path.py::test_a_preempted_job_goes_on_in_a_next_attempt"]),
    16: (
        "the time limit, with its warning early or never",
        [
            f"{SLURM}/test_limits.py::test_a_time_limit_is_continued",
            f"{FAULTS}/test_scenarios.py::test_16_a_limit_without_a_warning_loses_no_more_than_an_interval",
        ],
    ),
    17: (
        "a node dies",
        [f"{SLURM}/test_node_failure.py::test_a_dead_node_is_a_continuation_that_costs_no_retry"],
    ),
    18: (
        "a rank is killed",
        [f"{WORKER}/test_failures.py::test_a_killed_rank_is_named_although_only_its_peer_left_a_word"],
    ),
    19: (
        "somebody else's scancel; a hold",
        [
            f"{SLURM}/test_first_path.py::test_somebody_elses_scancel_is_shown_as_such",
            f"{SLURM}/test_observation.py::test_two_calls_a_tick_for_twenty_jobs",
        ],
    ),
    20: ("an id is used again", [f"{SLURM}/test_observation.py::test_an_id_with_another_name_is_another_job"]),
    21: (
        "the service is away while a run trains",
        [f"{WORKER}/test_outage.py::test_it_comes_back_in_the_middle_and_loses_answers"],
    ),
    22: (
        "an answer is lost after the commit",
        [f"{SERVICE}/test_reports.py::test_a_repeated_delivery_changes_nothing"],
    ),
    23: (
        "a worker's clock is wrong",
        [f"{FAULTS}/test_scenarios.py::test_23_a_node_whose_clock_is_an_hour_off"],
    ),
    24: (
        "the disk is full",
        [
            f"{HAND_OVER}::test_a_full_disk_leaves_the_job_to_be_tried_again",
            f"{FAULTS}/test_limits.py::test_24_a_database_without_room_takes_nothing_by_halves",
            "tests/unit/worker/test_reporting.py::test_the_run_goes_on_and_nothing_is_lost_or_torn",
        ],
    ),
    25: ("the database is away", [f"{FAULTS}/test_scenarios.py::test_25_a_database_that_does_not_answer"]),
    26: ("killed while a checkpoint is written", ["tests/unit/worker/test_checkpoint.py::test_one_without_a_manifest"]),
    27: (
        "the newest checkpoint is damaged",
        ["tests/unit/worker/test_checkpoint.py::test_a_damaged_one_is_set_aside_and_the_one_before_is_used"],
    ),
    28: (
        "the shared filesystem shows files late",
        [f"{FAULTS}/test_scenarios.py::test_28_a_last_word_that_shows_a_minute_late"],
    ),
    29: (
        "a newer or half-migrated database",
        [
            f"{SERVICE}/test_migrations.py::test_a_database_of_a_newer_release",
            f"{FAULTS}/test_limits.py::test_29_a_migration_that_is_interrupted_goes_on_at_the_next_start",
        ],
    ),
    30: (
        "slow and many streams",
        [
            f"{SERVICE}/test_reports.py::test_the_stream_replays_from_any_place_and_ends",
            f"{FAULTS}/test_limits.py::test_30_five_hundred_streams_end_with_the_same_events",
        ],
    ),
    31: (
        "ten thousand jobs",
        [
            f"{RECONCILE}::test_the_number_of_scheduler_calls_does_not_depend_on_the_number_of_jobs",
            f"{FAULTS}/test_limits.py::test_31_a_tick_over_ten_thousand_jobs_stays_within_its_bounds",
        ],
    ),
    32: (
        "cancelled in doubt or before sbatch",
        [
            f"{RECONCILE}::test_a_cancel_during_an_ambiguous_submission_leaves_nothing_running",
            f"{HAND_OVER}::test_a_job_cancelled_while_it_is_being_asked_about_leaves_nothing",
            f"{FAULTS}/test_crashes.py::test_killed_at",
        ],
    ),
}

IN_PART = {
    21: "two hours are not waited for: the outage lasts seconds. A run only appends to a file meanwhile, and the "
    "sender's pause between two attempts is bounded, so that more of it is more of the same",
    24: "Postgres: its server's own disk is not filled; SQLite's limit on pages and a limit on the size of files stand "
    "for a full filesystem, which a test may not mount",
    29: "on Postgres no migration is interrupted: its DDL is part of the transaction by nature",
    30: "the 500 readers share one process with the service's code; no sockets, so the kernel's buffers are not in it",
    31: "the API's response times meanwhile are measured by `bench/submit.py`, on fewer jobs",
}
"""What of a scenario is not tried here, and why."""


def test_every_scenario_has_its_tests() -> None:
    assert sorted(SCENARIOS) == list(range(1, 33))
    assert set(IN_PART) < set(SCENARIOS)
    for number, (_, proofs) in SCENARIOS.items():
        for proof in proofs:
            file, name = proof.split("::")
            assert re.search(rf"def {name}", (ROOT / file).read_text()), f"scenario {number}: there is no {proof}"


def test_09_a_tick_that_was_stopped_in_the_middle_applies_nothing(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.end("completed")

    def stopped(label: str) -> None:
        if label == "tick.after-decision":
            world.clock.advance(60)
            assert LeaderLease(world.database, "two").acquire(world.clock())

    world.services.crash = stopped
    assert world.reconciler.run_once() is False
    assert world.status(job) == "running", "what it had decided was dropped with its term"
    with pytest.raises(LeaseLostError), LeaderLease(world.database, "one", term=1).write():
        pytest.fail("a former leader was let in")


def test_10_half_an_hour_without_the_controller(world: World) -> None:
    running, waiting = world.submit(), world.submit()
    world.tick()
    world.scheduler.states[world.scheduler.submitted[0].tag] = Observation("running")
    worker = world.worker(running)
    worker.execution = worker.claim().json()["execution"]
    world.scheduler.unavailable = True
    accepted = world.submit()
    for minute in range(30):
        world.tick()
        world.clock.advance(60)
        assert worker.metrics([("train/loss", minute + 1, 1.0)]).status_code == 200
    assert [world.status(job) for job in (running, waiting, accepted)] == ["running", "pending", "queued"]
    world.scheduler.unavailable = False
    world.tick()
    assert world.status(accepted) == "pending"


def test_12_an_id_that_is_not_listed_for_five_minutes(world: World) -> None:
    job = world.submit()
    world.tick()
    listed = dict(world.scheduler.states)
    world.scheduler.states = {}
    for _ in range(5):
        world.tick()
        world.clock.advance(60)
        assert world.status(job) in ("pending", "lost"), "nothing final is concluded"
    world.scheduler.states = listed
    world.tick()
    assert world.status(job) == "pending"
    assert len(world.scheduler.submitted) == 1


def test_16_a_limit_without_a_warning_loses_no_more_than_an_interval(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    worker.checkpoint(10)
    tag = world.scheduler.submitted[0].tag
    world.scheduler.states[tag] = Observation("ended", "Slurm: TIMEOUT", ended_as="time_limit")
    world.tick()
    shown = world.job(job)
    assert (shown["status"], shown["last_checkpoint_step"]) == ("queued", 10)
    assert "its time limit was reached (Slurm: TIMEOUT)" in shown["status_message"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_23_a_node_whose_clock_is_an_hour_off(hours: int, world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    there = (world.clock() + timedelta(hours=hours)).isoformat()
    points = [{"key": "train/loss", "step": step, "value": 1.0, "time": there} for step in (1, 2)]
    assert worker.post("metrics", {"execution": 1, "resumed_from_step": 0, "points": points}).status_code == 200
    world.clock.advance(30)
    worker.finish("completed", time=there)
    world.scheduler.say("ended")
    world.tick()
    shown = world.job(job)
    assert shown["status"] == "succeeded"
    assert shown["started_at"] <= shown["finished_at"] <= world.clock().isoformat().replace("+00:00", "Z")
    (series,) = world.client.get(f"/v1/jobs/{job}/metrics?keys=train/loss").json()["series"]
    assert series["steps"] == [1, 2]


def test_25_a_database_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)

    def broken() -> object:
        raise UnavailableError("the database does not answer: on command", code="database")

    with monkeypatch.context() as patched:
        patched.setattr(world.database, "write", broken)
        patched.setattr(world.database, "write_plainly", broken)
        refused = worker.metrics([("train/loss", 1, 1.0), ("train/lr", 1, 0.1)])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database")
        with pytest.raises(UnavailableError):
            world.reconciler.run_once()
    assert world.status(job) == "running"
    assert world.client.get(f"/v1/jobs/{job}/metrics").json()["series"] == [], "no half batch"
    assert worker.metrics([("train/loss", 1, 1.0), ("train/lr", 1, 0.1)]).status_code == 200


def test_28_a_last_word_that_shows_a_minute_late(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    world.clock.advance(60)
    world.scheduler.states = {}
    world.tick()
    assert world.status(job) == "lost", "not final"
    world.clock.advance(60)
    worker.finish("completed", step=20)
    world.tick()
    assert world.status(job) == "succeeded"


def test_an_ambiguous_submission_is_explained_while_it_lasts(world: World) -> None:
    world.scheduler.name = "slurm"
    job = world.submit()
    world.scheduler.outcome = Ambiguous("Socket timed out")
    world.tick()
    assert "handed over without a clear answer (Socket timed out)" in world.job(job)["status_message"]
