"""The local scheduler with real processes: queue, identity, cancellation, and what a killed service leaves behind."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.scheduler.base import Accepted, Ambiguous, LaunchPlan, Observation, Rejected, SubmittedJob
from service.scheduler.local import processes as local_processes
from service.scheduler.local.queue import Entry
from service.scheduler.local.scheduler import LocalScheduler
from tests.support import local_service
from tests.support.wait import wait_until
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE


def utc_now() -> datetime:
    return datetime.now(UTC)


class Place:
    """A state folder, attempts in it, and a scheduler on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self._unique = f"{os.getpid()}x{time.monotonic_ns()}"
        self.env_tags: list[str] = []

    def scheduler(self, job: str = "wait", slots: int = 2, **options: Any) -> LocalScheduler:
        return LocalScheduler(self.state, slots, utc_now, target=f"tests.support.jobs:{job}", **options)

    def plan(self, name: str, ranks: int = 1, **environment: str) -> LaunchPlan:
        folder = self.root / name
        folder.mkdir()
        env_tag = f"{name}x{self._unique}"
        self.env_tags.append(env_tag)
        always = {"PATH": os.environ["PATH"], "PYTHONPATH": str(local_service.ROOT), ATTEMPT_VARIABLE: env_tag}
        return LaunchPlan(tag=f"ty-{name}", folder=folder, ranks=ranks, environment=always | environment, script="")

    def entry(self, plan: LaunchPlan) -> Entry:
        return Entry.model_validate_json(self._file(plan).read_bytes())

    def change(self, plan: LaunchPlan, **fields: Any) -> None:
        self._file(plan).write_text(self.entry(plan).model_copy(update=fields).model_dump_json())

    def _file(self, plan: LaunchPlan) -> Path:
        return self.state / "local" / "queue" / f"{plan.tag}.json"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for env_tag in made.env_tags:
        wait_until(lambda env_tag=env_tag: local_processes.kill_tagged(env_tag) == 0, what="the test's jobs to be gone")


def known(plan: LaunchPlan) -> SubmittedJob:
    return SubmittedJob(plan.tag, plan.tag, plan.folder)


def look(scheduler: LocalScheduler, plan: LaunchPlan) -> Observation:
    return scheduler.observe([known(plan)])[plan.tag]


def until(scheduler: LocalScheduler, plan: LaunchPlan, state: str, timeout: float = 10) -> Observation:
    seen = look(scheduler, plan)

    def there() -> bool:
        nonlocal seen
        seen = look(scheduler, plan)
        return seen.state == state

    wait_until(there, timeout, f"{plan.tag} to be {state}, seen {seen}")
    return seen


def began(plan: LaunchPlan) -> None:
    wait_until((plan.folder / "began").exists, what=f"{plan.tag} to begin")


def go(plan: LaunchPlan) -> None:
    (plan.folder / "go").touch()


def lines(plan: LaunchPlan, name: str) -> list[str]:
    path = plan.folder / name
    return path.read_text().split() if path.exists() else []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class TestOneJob:
    def test_runs_once_and_ends(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("one")
        assert scheduler.submit(plan) == Accepted(plan.tag)
        began(plan)
        seen = look(scheduler, plan)
        assert seen.state == "running"
        assert len(seen.nodes) == 1
        assert scheduler.find(plan.tag, plan.folder) == [plan.tag]
        go(plan)
        until(scheduler, plan, "ended")
        assert scheduler.find(plan.tag, plan.folder) == []
        assert len(lines(plan, "ran")) == 1

    def test_a_tag_is_started_once_however_often_it_is_submitted(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("one")
        for _ in range(3):
            assert scheduler.submit(plan) == Accepted(plan.tag)
        began(plan)
        go(plan)
        until(scheduler, plan, "ended")
        assert scheduler.submit(plan) == Accepted(plan.tag)
        assert look(scheduler, plan).state == "ended"
        assert len(lines(plan, "ran")) == 1

    def test_a_tag_never_heard_of_is_absent(self, place: Place) -> None:
        plan = place.plan("one")
        assert look(place.scheduler(), plan) == Observation("absent")
        assert place.scheduler().find(plan.tag, plan.folder) == []

    def test_the_job_sees_only_what_was_allowed(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRAINYARD_DATABASE_URL", "postgresql://secret")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        scheduler, plan = place.scheduler("environment"), place.plan("one", MY_FLAG="$(x) 'y'")
        scheduler.submit(plan)
        began(plan)
        seen = json.loads((plan.folder / "environment.json").read_text())
        ours = {name: value for name, value in seen.items() if not name.startswith("SUBMITIT_")}
        # The interpreter adds LC_CTYPE by itself; submitit hides GPUs that were not given.
        expected = dict(plan.environment) | {"CUDA_VISIBLE_DEVICES": ""}
        assert {**ours, "LC_CTYPE": ""} == {**expected, "LC_CTYPE": ""}
        assert "secret" not in json.dumps(seen)
        until(scheduler, plan, "ended")

    def test_each_rank_gets_a_gpu_that_no_other_job_has(self, place: Place) -> None:
        scheduler = place.scheduler("environment", slots=8, gpus=(3, 5, 6))
        plans = [place.plan("a", 2), place.plan("b", 1)]
        for plan in plans:
            scheduler.submit(plan)
            began(plan)
        seen = [json.loads((plan.folder / "environment.json").read_text())["CUDA_VISIBLE_DEVICES"] for plan in plans]
        assert seen[0] == "3,5"
        assert seen[1] in {"6", "3"}
        assert scheduler.submit(place.plan("c", 4)) == Rejected(
            "The job needs 4 local slots, and this service has 3 (TRAINYARD_LOCAL_SLOTS)."
        )

    @pytest.mark.parametrize("job", ["fail", "environment"])
    def test_exit_code_and_result_file_say_nothing(self, place: Place, job: str) -> None:
        scheduler, plan = place.scheduler(job), place.plan("one")
        scheduler.submit(plan)
        assert until(scheduler, plan, "ended") == Observation("ended")

    def test_case_14_a_result_file_is_never_opened_and_never_ends_a_job(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("one")
        scheduler.submit(plan)
        began(plan)

        class Bomb:
            def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
                return os.mkdir, (str(place.root / "exploded"),)

        pid = place.entry(plan).pid
        (plan.folder / "submitit" / f"{pid}_0_result.pkl").write_bytes(pickle.dumps(("success", Bomb())))
        assert look(scheduler, plan).state == "running"
        go(plan)
        until(scheduler, plan, "ended")
        assert not (place.root / "exploded").exists()

    def test_start_up_is_quick(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        scheduler, took = place.scheduler(), []
        for number in range(5):
            plan, before = place.plan(f"n{number}"), time.time()
            scheduler.submit(plan)
            began(plan)
            took.append(float((plan.folder / "began").read_text()) - before)
            go(plan)
            until(scheduler, plan, "ended")
        with capsys.disabled():
            print(f"\nsubmit to the launcher's first line: median {sorted(took)[2]:.2f} s, most {max(took):.2f} s")
        assert sorted(took)[2] < 1.2


class TestQueue:
    def test_first_in_first_out_within_the_slots(self, place: Place) -> None:
        scheduler = place.scheduler(slots=2)
        first, second, third = place.plan("a", 1), place.plan("b", 2), place.plan("c", 1)
        for plan in (first, second, third):
            assert scheduler.submit(plan) == Accepted(plan.tag)
        began(first)
        waits = look(scheduler, second)
        assert waits.message == "Waiting for 2 of 2 local slots (1 in use). Ahead: ty-a (running)."
        last = look(scheduler, third)
        assert last.message == "Waiting for 1 of 2 local slots (1 in use). Ahead: ty-a (running), 1 more queued."
        assert (last.state, last.blocked_by) == ("pending", ("ty-a",))
        go(first)
        until(scheduler, second, "running")
        assert look(scheduler, third).state == "pending"
        began(second)
        assert not lines(third, "ran")
        go(second)
        until(scheduler, third, "running")

    def test_more_ranks_than_slots_is_a_clear_no(self, place: Place) -> None:
        scheduler, plan = place.scheduler(slots=2), place.plan("a", 3)
        assert scheduler.submit(plan) == Rejected(
            "The job needs 3 local slots, and this service has 2 (TRAINYARD_LOCAL_SLOTS)."
        )
        assert look(scheduler, plan).state == "absent"

    def test_a_waiting_job_is_cancelled_on_the_spot(self, place: Place) -> None:
        scheduler, running, waits = place.scheduler(slots=1), place.plan("a"), place.plan("b")
        scheduler.submit(running)
        scheduler.submit(waits)
        scheduler.cancel(known(waits))
        assert look(scheduler, waits) == Observation("ended", "Cancelled before the start.")
        go(running)
        until(scheduler, running, "ended")
        assert not lines(waits, "ran")

    def test_what_cannot_be_started_is_tried_again_and_then_ends(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        broken = LaunchPlan(**{**plan.__dict__, "python": "/nowhere/python"})
        assert scheduler.submit(broken) == Accepted(plan.tag)
        seen = until(scheduler, plan, "ended")
        assert seen.message.startswith("Start failed: ")
        assert "/nowhere/python" in seen.message

    def test_a_queue_that_cannot_be_written_is_ambiguous(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("service.scheduler.local.queue.write_atomic", full)
        outcome = scheduler.submit(plan)
        assert isinstance(outcome, Ambiguous)
        assert "No space left on device" in outcome.message
        assert scheduler.find(plan.tag, plan.folder) == []

    def test_two_instances_never_start_one_entry_twice(self, place: Place) -> None:
        blocker, plan = place.plan("a", 2), place.plan("b", 2)
        first = place.scheduler(slots=2)
        first.submit(blocker)
        first.submit(plan)
        enough = place.root / "enough"
        others = [local_service.start("observe", place.state, enough) for _ in range(2)]
        began(blocker)
        go(blocker)
        began(plan)
        enough.touch()
        for other in others:
            assert other.wait(timeout=30) == 0
            other.communicate()
        assert len(lines(plan, "ran")) == 1
        assert place.entry(plan).starts == 1


class TestCancel:
    def test_the_launcher_gets_one_sigterm(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)
        for _ in range(3):
            scheduler.cancel(known(plan))
        until(scheduler, plan, "ended")
        assert lines(plan, "signals") == ["SIGTERM"]
        scheduler.cancel(known(plan))
        assert look(scheduler, plan).state == "ended"

    def test_grandchildren_that_ignore_everything_are_gone_in_time(self, place: Place) -> None:
        scheduler, plan = place.scheduler("stubborn"), place.plan("a")
        scheduler.submit(plan)
        wait_until(lambda: len(lines(plan, "pids")) == 4, what="three grandchildren")
        pids = [int(pid) for pid in lines(plan, "pids")]
        asked = time.monotonic()
        scheduler.cancel(known(plan))
        until(scheduler, plan, "ended", timeout=8)
        assert 4 < time.monotonic() - asked < 8
        assert all(gone(pid) for pid in pids)

    def test_a_cancel_of_the_unknown_is_harmless(self, place: Place) -> None:
        place.scheduler().cancel(known(place.plan("a")))


class TestIdentity:
    def test_what_a_killed_controller_leaves_is_killed_before_it_is_over(self, place: Place) -> None:
        scheduler, plan = place.scheduler("stubborn"), place.plan("a")
        scheduler.submit(plan)
        wait_until(lambda: len(lines(plan, "pids")) == 4, what="three grandchildren")
        pid = place.entry(plan).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(scheduler, plan, "ended")
        assert all(gone(int(pid)) for pid in lines(plan, "pids"))

    def test_what_a_finished_job_leaves_is_killed_too(self, place: Place) -> None:
        scheduler, plan = place.scheduler("leave_orphans"), place.plan("a")
        scheduler.submit(plan)
        until(scheduler, plan, "ended")
        assert len(lines(plan, "pids")) == 2
        assert all(gone(int(pid)) for pid in lines(plan, "pids"))

    def test_a_reused_pid_is_another_process_and_stays_alive(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)
        bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            real = place.entry(plan).pid
            place.change(plan, pid=bystander.pid, create_time=12345.0)
            go(plan)
            assert real is not None
            wait_until(lambda: gone(real), what="the real controller to end")
            until(scheduler, plan, "ended")
            assert bystander.poll() is None
        finally:
            bystander.communicate(b"\n")

    def test_a_step_of_the_system_clock_kills_nothing(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)
        shifted = place.entry(plan).create_time
        assert shifted is not None
        place.change(plan, create_time=shifted - 3600)
        assert look(scheduler, plan).state == "running"
        go(plan)
        until(scheduler, plan, "ended")
        assert (plan.folder / "finished").exists()

    def test_live_controllers_cost_no_scan(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)

        def scan(_: str) -> list[psutil.Process]:
            raise AssertionError("scanned")

        with monkeypatch.context() as patch:
            patch.setattr(local_processes, "marked", scan)
            assert look(scheduler, plan).state == "running"


class TestCrashes:
    def test_a_job_outlives_a_killed_service_and_is_found_by_the_next(self, place: Place) -> None:
        plan = place.plan("a")
        service = local_service.start("submit", place.state, plan)
        assert service.stdout is not None
        assert service.stdout.readline().startswith(b"Accepted")
        began(plan)
        os.killpg(service.pid, signal.SIGKILL)
        service.communicate()
        following = place.scheduler()
        assert following.find(plan.tag, plan.folder) == [plan.tag]
        assert look(following, plan).state == "running"
        go(plan)
        until(following, plan, "ended")
        assert (plan.folder / "finished").exists()
        assert len(lines(plan, "ran")) == 1

    def test_a_service_killed_while_it_starts_a_job_is_waited_for_by_the_next(self, place: Place) -> None:
        slow = place.root / "slow"
        slow.mkdir()
        text = "import sys, time\ntime.sleep(0.7 * ('local_submit' in ' '.join(sys.orig_argv)))\n"
        (slow / "sitecustomize.py").write_text(text)
        plan = place.plan("a", PYTHONPATH=f"{slow}:{local_service.ROOT}")
        service = local_service.start("submit", place.state, plan)
        wait_until(lambda: local_processes.tagged_processes(plan.environment[ATTEMPT_VARIABLE]), what="the submitter")
        service.kill()
        service.communicate()
        following = place.scheduler()
        assert look(following, plan).state == "running"
        began(plan)
        assert place.entry(plan).starts == 1
        assert len(lines(plan, "ran")) == 1

    def test_started_but_not_recorded_is_adopted(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)
        pid = place.entry(plan).pid
        place.change(plan, pid=None, create_time=None)
        assert look(place.scheduler(), plan).state == "running"
        assert place.entry(plan).pid == pid
        scheduler.cancel(known(plan))
        until(scheduler, plan, "ended")
        assert len(lines(plan, "ran")) == 1

    def test_started_not_recorded_and_over_is_not_started_again(self, place: Place) -> None:
        scheduler, plan = place.scheduler(), place.plan("a")
        scheduler.submit(plan)
        began(plan)
        entry = place.entry(plan)
        go(plan)
        assert entry.pid is not None
        wait_until(lambda: gone(entry.pid or 0), what="the controller to end")
        place.change(plan, pid=None, create_time=None)
        assert look(place.scheduler(), plan).state == "ended"
        assert len(lines(plan, "ran")) == 1

    def test_begun_but_never_spawned_is_started(self, place: Place) -> None:
        blocker, plan = place.plan("a", 2), place.plan("b")
        scheduler = place.scheduler(slots=2)
        scheduler.submit(blocker)
        scheduler.submit(plan)
        place.change(plan, begun_at=utc_now(), starts=1)
        go(blocker)
        until(place.scheduler(), blocker, "ended")
        until(place.scheduler(), plan, "running")
        began(plan)
        go(plan)
        until(scheduler, plan, "ended")
        assert len(lines(plan, "ran")) == 1

    def test_recorded_but_not_begun_is_started_by_the_next_service(self, place: Place) -> None:
        blocker, plan = place.plan("a", 2), place.plan("b")
        scheduler = place.scheduler(slots=2)
        scheduler.submit(blocker)
        scheduler.submit(plan)
        began(blocker)
        go(blocker)
        until(place.scheduler(), plan, "running")
        began(plan)

    def test_killed_at_any_moment_of_the_start_it_runs_once(self, place: Place) -> None:
        """SIGKILL the service this many milliseconds after it began to submit; the next one finds its way."""
        for number, pause in enumerate((0.004, 0.02, 0.06, 0.1, 0.14)):
            plan = place.plan(f"n{number}")
            service = local_service.start("submit", place.state, plan)
            time.sleep(pause)
            service.kill()
            service.communicate()
            following = place.scheduler()
            following.submit(plan)
            until(following, plan, "running")
            began(plan)
            go(plan)
            until(following, plan, "ended")
            assert len(lines(plan, "ran")) == 1, f"killed after {pause} s"
