"""The local scheduler with real processes: queue, process identity, cancellation and recovery after a crash."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from service.scheduler.base import Accepted, Ambiguous, LaunchPlan, Observation, Rejected, SubmittedJob
from service.scheduler.launch_plan import plan_launch
from service.scheduler.local import processes as local_processes
from service.scheduler.local import scheduler as local_scheduler
from service.scheduler.local.queue import Entry
from service.scheduler.local.scheduler import LocalScheduler
from tests.support import local_service
from tests.support.wait import wait_until
from tests.unit.service.scheduler.test_launch_plan import document
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from worker.launcher.program_stop import END_SECONDS
from worker.launcher.stop_signals import CANCEL_GRACE_SECONDS


def utc_now() -> datetime:
    return datetime.now(UTC)


class Setup:
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
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    for env_tag in made.env_tags:
        wait_until(
            lambda env_tag=env_tag: local_processes.kill_tagged(env_tag, os.getuid()) == 0,
            what="the test's jobs to be gone",
        )


def known(plan: LaunchPlan) -> SubmittedJob:
    return SubmittedJob(plan.tag, plan.tag, plan.folder)


def observe(scheduler: LocalScheduler, plan: LaunchPlan) -> Observation:
    return scheduler.observe([known(plan)])[plan.tag]


def until(scheduler: LocalScheduler, plan: LaunchPlan, state: str, timeout: float = 10) -> Observation:
    observation = observe(scheduler, plan)

    def there() -> bool:
        nonlocal observation
        observation = observe(scheduler, plan)
        return observation.state == state

    wait_until(there, timeout, f"{plan.tag} to be {state}, observation {observation}")
    return observation


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
    def test_runs_once_and_ends(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("one")
        assert scheduler.submit(plan) == Accepted(plan.tag)
        began(plan)
        observation = observe(scheduler, plan)
        assert observation.state == "running"
        assert len(observation.nodes) == 1
        assert scheduler.find(plan.tag, plan.folder) == [plan.tag]
        go(plan)
        until(scheduler, plan, "ended")
        assert scheduler.find(plan.tag, plan.folder) == []
        assert len(lines(plan, "ran")) == 1

    def test_a_tag_is_started_once_however_often_it_is_submitted(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("one")
        for _ in range(3):
            assert scheduler.submit(plan) == Accepted(plan.tag)
        began(plan)
        go(plan)
        until(scheduler, plan, "ended")
        assert scheduler.submit(plan) == Accepted(plan.tag)
        assert observe(scheduler, plan).state == "ended"
        assert len(lines(plan, "ran")) == 1

    def test_an_unknown_tag_is_absent(self, setup: Setup) -> None:
        plan = setup.plan("one")
        assert observe(setup.scheduler(), plan) == Observation("absent")
        assert setup.scheduler().find(plan.tag, plan.folder) == []

    def test_no_process_imports_modules_from_the_attempt_folder(self, setup: Setup) -> None:
        env_tag = f"safe{setup._unique}"
        setup.env_tags.append(env_tag)
        folder, marker = setup.root / "one", setup.root / "imported"
        folder.mkdir()
        for name in ("submitit", "json", "cloudpickle", "worker", "service"):
            (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close(); raise SystemExit('planted')")
        inherited, search_path = {"PATH": os.environ["PATH"]}, [local_service.ROOT]
        made = document(attempt_id=env_tag, ranks_per_node=1)
        plan = plan_launch(made, folder=folder, inherited=inherited, search_path=search_path)
        scheduler = setup.scheduler("environment")
        assert scheduler.submit(plan) == Accepted(plan.tag)
        wait_until(lambda: (folder / "environment.json").exists(), what="the job to run")
        assert not marker.exists()

    def test_the_job_inherits_only_the_planned_environment(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRAINYARD_DATABASE_URL", "postgresql://secret")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        scheduler, plan = setup.scheduler("environment"), setup.plan("one", MY_FLAG="$(x) 'y'")
        scheduler.submit(plan)
        began(plan)
        observation = json.loads((plan.folder / "environment.json").read_text())
        ours = {name: value for name, value in observation.items() if not name.startswith("SUBMITIT_")}
        # The interpreter adds LC_CTYPE by itself; submitit hides GPUs that were not given.
        expected = dict(plan.environment) | {"CUDA_VISIBLE_DEVICES": ""}
        assert {**ours, "LC_CTYPE": ""} == {**expected, "LC_CTYPE": ""}
        assert "secret" not in json.dumps(observation)
        until(scheduler, plan, "ended")

    def test_gpus_with_uuids_are_given_to_the_job(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler("environment", gpus=("GPU-1b2c", "GPU-8932f937")), setup.plan("one", 2)
        scheduler.submit(plan)
        began(plan)
        observation = json.loads((plan.folder / "environment.json").read_text())
        assert observation["CUDA_VISIBLE_DEVICES"] == "GPU-1b2c,GPU-8932f937"

    def test_each_rank_gets_a_gpu_of_its_own(self, setup: Setup) -> None:
        scheduler = setup.scheduler("environment", slots=8, gpus=(3, 5, 6))
        plans = [setup.plan("a", 2), setup.plan("b", 1)]
        for plan in plans:
            scheduler.submit(plan)
            began(plan)
        observation = [
            json.loads((plan.folder / "environment.json").read_text())["CUDA_VISIBLE_DEVICES"] for plan in plans
        ]
        assert observation[0] == "3,5"
        assert observation[1] in {"6", "3"}
        assert scheduler.submit(setup.plan("c", 4)) == Rejected(
            "The job needs 4 local slots, and this service has 3 (TRAINYARD_LOCAL_SLOTS)."
        )

    @pytest.mark.parametrize("job", ["fail", "environment"])
    def test_exit_code_and_result_file_are_ignored(self, setup: Setup, job: str) -> None:
        scheduler, plan = setup.scheduler(job), setup.plan("one")
        scheduler.submit(plan)
        assert until(scheduler, plan, "ended") == Observation("ended")

    def test_case_14_a_result_file_is_never_opened_and_never_ends_a_job(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("one")
        scheduler.submit(plan)
        began(plan)

        class Bomb:
            def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
                return os.mkdir, (str(setup.root / "exploded"),)

        pid = setup.entry(plan).pid
        (plan.folder / "submitit" / f"{pid}_0_result.pkl").write_bytes(pickle.dumps(("success", Bomb())))
        assert observe(scheduler, plan).state == "running"
        go(plan)
        until(scheduler, plan, "ended")
        assert not (setup.root / "exploded").exists()

    def test_a_job_starts_within_five_times_an_import_of_submitit(self, setup: Setup) -> None:
        scheduler, took, floor = setup.scheduler(), [], []
        for number in range(5):
            started = time.time()
            subprocess.run([sys.executable, "-c", "import submitit"], check=True)
            floor.append(time.time() - started)
            plan, submitted = setup.plan(f"n{number}"), time.time()
            scheduler.submit(plan)
            began(plan)
            took.append(float((plan.folder / "began").read_text()) - submitted)
            go(plan)
            until(scheduler, plan, "ended")
        assert median(took) < 5 * median(floor), (took, floor)


class TestQueue:
    def test_first_in_first_out_within_the_slots(self, setup: Setup) -> None:
        scheduler = setup.scheduler(slots=2)
        first, second, third = setup.plan("a", 1), setup.plan("b", 2), setup.plan("c", 1)
        for plan in (first, second, third):
            assert scheduler.submit(plan) == Accepted(plan.tag)
        began(first)
        waits = observe(scheduler, second)
        assert waits.message == "Waiting for 2 of 2 local slots (1 in use). Ahead: ty-a (running)."
        last = observe(scheduler, third)
        assert last.message == "Waiting for 1 of 2 local slots (1 in use). Ahead: ty-a (running), 1 more queued."
        assert (last.state, last.blocked_by) == ("pending", ("ty-a",))
        go(first)
        until(scheduler, second, "running")
        assert observe(scheduler, third).state == "pending"
        began(second)
        assert not lines(third, "ran")
        go(second)
        until(scheduler, third, "running")

    def test_more_ranks_than_slots_is_rejected(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(slots=2), setup.plan("a", 3)
        assert scheduler.submit(plan) == Rejected(
            "The job needs 3 local slots, and this service has 2 (TRAINYARD_LOCAL_SLOTS)."
        )
        assert observe(scheduler, plan).state == "absent"

    def test_a_waiting_job_is_cancelled_at_once(self, setup: Setup) -> None:
        scheduler, running, waits = setup.scheduler(slots=1), setup.plan("a"), setup.plan("b")
        scheduler.submit(running)
        scheduler.submit(waits)
        scheduler.cancel(known(waits))
        assert observe(scheduler, waits) == Observation("ended", "Cancelled before the attempt started.")
        go(running)
        until(scheduler, running, "ended")
        assert not lines(waits, "ran")

    def test_a_failed_start_is_retried_and_then_ends(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        broken = LaunchPlan(**{**plan.__dict__, "python": "/nowhere/python"})
        assert scheduler.submit(broken) == Accepted(plan.tag)
        observation = until(scheduler, plan, "ended")
        assert observation.message.startswith("Start failed: ")
        assert "/nowhere/python" in observation.message

    def test_a_queue_that_cannot_be_written_is_ambiguous(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("service.scheduler.local.queue.write_atomic", full)
        outcome = scheduler.submit(plan)
        assert isinstance(outcome, Ambiguous)
        assert "No space left on device" in outcome.message
        assert scheduler.find(plan.tag, plan.folder) == []

    @pytest.mark.cpu_seconds(5)
    def test_two_instances_never_start_one_entry_twice(self, setup: Setup) -> None:
        blocker, plan = setup.plan("a", 2), setup.plan("b", 2)
        first = setup.scheduler(slots=2)
        first.submit(blocker)
        first.submit(plan)
        enough = setup.root / "enough"
        others = [local_service.start("observe", setup.state, enough) for _ in range(2)]
        began(blocker)
        go(blocker)
        began(plan)
        enough.touch()
        for other in others:
            assert other.wait(timeout=30) == 0
            other.communicate()
        assert len(lines(plan, "ran")) == 1
        assert setup.entry(plan).starts == 1


class TestCancel:
    def test_the_launcher_gets_one_sigterm(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)
        for _ in range(3):
            scheduler.cancel(known(plan))
        until(scheduler, plan, "ended")
        assert lines(plan, "signals") == ["SIGTERM"]
        scheduler.cancel(known(plan))
        assert observe(scheduler, plan).state == "ended"

    def test_the_launcher_has_time_to_end_the_ranks_of_a_cancelled_job(self) -> None:
        assert timedelta(seconds=CANCEL_GRACE_SECONDS + END_SECONDS + 5) < local_scheduler.GRACE

    def test_grandchildren_that_ignore_sigterm_are_killed(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_scheduler, "GRACE", timedelta(seconds=5))
        scheduler, plan = setup.scheduler("stubborn"), setup.plan("a")
        scheduler.submit(plan)
        wait_until(lambda: len(lines(plan, "pids")) == 4, what="three grandchildren")
        pids = [int(pid) for pid in lines(plan, "pids")]
        requested_at = time.monotonic()
        scheduler.cancel(known(plan))
        until(scheduler, plan, "ended", timeout=60)
        assert time.monotonic() - requested_at > 4, "they had no time to end by themselves"
        assert all(gone(pid) for pid in pids)

    def test_cancelling_an_unknown_job_is_harmless(self, setup: Setup) -> None:
        setup.scheduler().cancel(known(setup.plan("a")))


class TestIdentity:
    def test_processes_of_a_killed_controller_are_killed(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler("stubborn"), setup.plan("a")
        scheduler.submit(plan)
        wait_until(lambda: len(lines(plan, "pids")) == 4, what="three grandchildren")
        pid = setup.entry(plan).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(scheduler, plan, "ended")
        assert all(gone(int(pid)) for pid in lines(plan, "pids"))

    def test_processes_of_a_finished_job_are_killed(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler("leave_orphans"), setup.plan("a")
        scheduler.submit(plan)
        until(scheduler, plan, "ended")
        assert len(lines(plan, "pids")) == 2
        assert all(gone(int(pid)) for pid in lines(plan, "pids"))

    def test_a_process_with_a_reused_pid_is_not_killed(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)
        other_process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            real = setup.entry(plan).pid
            setup.change(plan, pid=other_process.pid, create_time=12345.0)
            go(plan)
            assert real is not None
            wait_until(lambda: gone(real), what="the real controller to end")
            until(scheduler, plan, "ended")
            assert other_process.poll() is None
        finally:
            other_process.communicate(b"\n")

    def test_a_step_of_the_system_clock_kills_nothing(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)
        shifted = setup.entry(plan).create_time
        assert shifted is not None
        setup.change(plan, create_time=shifted - 3600)
        assert observe(scheduler, plan).state == "running"
        go(plan)
        until(scheduler, plan, "ended")
        assert (plan.folder / "finished").exists()

    def test_live_controllers_need_no_process_scan(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)

        def scan(_: str) -> list[psutil.Process]:
            raise AssertionError("scanned")

        with monkeypatch.context() as patch:
            patch.setattr(local_processes, "tagged_processes", scan)
            assert observe(scheduler, plan).state == "running"


class TestCrashes:
    def test_a_job_outlives_a_killed_service_and_is_adopted(self, setup: Setup) -> None:
        plan = setup.plan("a")
        service = local_service.start("submit", setup.state, plan)
        assert service.stdout is not None
        assert service.stdout.readline().startswith(b"Accepted")
        began(plan)
        os.killpg(service.pid, signal.SIGKILL)
        service.communicate()
        following = setup.scheduler()
        assert following.find(plan.tag, plan.folder) == [plan.tag]
        assert observe(following, plan).state == "running"
        go(plan)
        until(following, plan, "ended")
        assert (plan.folder / "finished").exists()
        assert len(lines(plan, "ran")) == 1

    def test_a_start_in_progress_is_awaited_by_the_next_service(self, setup: Setup) -> None:
        slow = setup.root / "slow"
        slow.mkdir()
        text = "import sys, time\ntime.sleep(0.7 * ('local.submit' in ' '.join(sys.orig_argv)))\n"
        (slow / "sitecustomize.py").write_text(text)
        plan = setup.plan("a", PYTHONPATH=f"{slow}:{local_service.ROOT}")
        service = local_service.start("submit", setup.state, plan)
        env_tag = plan.environment[ATTEMPT_VARIABLE]
        wait_until(lambda: local_processes.tagged_processes(env_tag, os.getuid()), what="the submitter")
        service.kill()
        service.communicate()
        following = setup.scheduler()
        assert observe(following, plan).state == "running"
        began(plan)
        assert setup.entry(plan).starts == 1
        assert len(lines(plan, "ran")) == 1

    def test_an_unrecorded_start_is_adopted(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)
        pid = setup.entry(plan).pid
        setup.change(plan, pid=None, create_time=None)
        assert observe(setup.scheduler(), plan).state == "running"
        assert setup.entry(plan).pid == pid
        scheduler.cancel(known(plan))
        until(scheduler, plan, "ended")
        assert len(lines(plan, "ran")) == 1

    def test_an_unrecorded_ended_start_is_not_repeated(self, setup: Setup) -> None:
        scheduler, plan = setup.scheduler(), setup.plan("a")
        scheduler.submit(plan)
        began(plan)
        entry = setup.entry(plan)
        go(plan)
        assert entry.pid is not None
        wait_until(lambda: gone(entry.pid or 0), what="the controller to end")
        setup.change(plan, pid=None, create_time=None)
        assert observe(setup.scheduler(), plan).state == "ended"
        assert len(lines(plan, "ran")) == 1

    def test_a_start_that_never_spawned_is_repeated(self, setup: Setup) -> None:
        blocker, plan = setup.plan("a", 2), setup.plan("b")
        scheduler = setup.scheduler(slots=2)
        scheduler.submit(blocker)
        scheduler.submit(plan)
        setup.change(plan, begun_at=utc_now(), starts=1)
        go(blocker)
        until(setup.scheduler(), blocker, "ended")
        until(setup.scheduler(), plan, "running")
        began(plan)
        go(plan)
        until(scheduler, plan, "ended")
        assert len(lines(plan, "ran")) == 1

    def test_a_queued_entry_is_started_by_the_next_service(self, setup: Setup) -> None:
        blocker, plan = setup.plan("a", 2), setup.plan("b")
        scheduler = setup.scheduler(slots=2)
        scheduler.submit(blocker)
        scheduler.submit(plan)
        began(blocker)
        go(blocker)
        until(setup.scheduler(), plan, "running")
        began(plan)

    @pytest.mark.cpu_seconds(6)
    def test_an_entry_runs_once_whenever_its_start_is_killed(self, setup: Setup) -> None:
        """SIGKILL the service this many milliseconds after it began to submit; the next one finds its way."""
        for number, pause in enumerate((0.004, 0.02, 0.06, 0.1, 0.14)):
            plan = setup.plan(f"n{number}")
            service = local_service.start("submit", setup.state, plan)
            time.sleep(pause)
            service.kill()
            service.communicate()
            following = setup.scheduler()
            following.submit(plan)
            until(following, plan, "running")
            began(plan)
            go(plan)
            until(following, plan, "ended")
            assert len(lines(plan, "ran")) == 1, f"killed after {pause} s"
