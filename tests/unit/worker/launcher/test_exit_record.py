import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from tests.unit.worker.launcher.test_nodes import document
from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.reports import FinishRecord
from worker.core.errors import describe, is_out_of_memory, write_error
from worker.core.processes import descendants, kill_remaining
from worker.core.rank_exits import rank_exits_file
from worker.launcher.exit_record import finalize
from worker.launcher.stop_signals import StopRequest, SuspendDetector, TimeLimit, slurm_seconds_left

SPEC = parse_spec(fill_template("mlp_parity", {}))
ROOT = Path(__file__).parents[4]


@pytest.fixture
def layout(tmp_path):
    layout = AttemptLayout(tmp_path)
    layout.errors.mkdir()
    layout.spool.mkdir()
    return layout


class TestImports:
    def modules(self, statement):
        program = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
        return {name.partition(".")[0] for name in json.loads(done.stdout)}

    def test_launch_loads_no_torch(self):
        assert self.modules("import worker.launcher.supervise") & {"torch", "numpy", "submitit"} == set()

    @pytest.mark.cpu_seconds(6)
    def test_a_rank_loads_nothing_of_the_service_or_of_science(self):
        statement = "import worker.__main__, worker.engine.trainer, worker.reporting.spool_sender, worker.tasks.select"
        statement += "\nimport worker.tasks.causal_lm, worker.tasks.regression, worker.tasks.image_classification"
        forbidden = {"fastapi", "sqlalchemy", "psutil", "sklearn", "scipy", "service", "starlette"}
        assert self.modules(statement) & forbidden == set()


class TestFinalize:
    def error(self, layout, rank, error, at, execution=1):
        record = describe(error, rank=rank, execution=execution, spec=SPEC).model_copy(update={"time": at})
        write_error(layout.rank_error(rank), record)

    def finalize(self, layout, returncode=1, killed_for=None, lost_nodes=list):
        return finalize(layout, 1, returncode, killed_for=killed_for, spec=SPEC, lost_nodes=lost_nodes)

    def test_a_ranks_own_record_stands(self, layout):
        record = FinishRecord(execution=1, reason="completed", step=5, time=datetime.now(UTC))
        write_atomic(layout.finish(1), record.model_dump_json())
        assert self.finalize(layout, 0).reason == "completed"

    def test_the_earliest_error_is_the_first_failure(self, layout):
        self.error(layout, 0, RuntimeError("later"), 20.0)
        self.error(layout, 2, ValueError("earlier"), 10.0)
        failure = self.finalize(layout).failure
        assert (failure.rank, failure.type, failure.message) == (2, "ValueError", "earlier")
        assert layout.finish(1).is_file()

    def test_a_peers_complaint_is_not(self, layout):
        self.error(layout, 0, RuntimeError("[gloo/transport/tcp] Connection closed by peer"), 10.0)
        self.error(layout, 1, ValueError("the cause, written late"), 20.0)
        assert self.finalize(layout).failure.rank == 1

    def test_a_killed_rank_without_a_word_comes_before_its_peers(self, layout):
        self.error(layout, 0, RuntimeError("Connection reset by peer"), 10.0)
        ends = [{"rank": 0, "exitcode": 1, "pid": 7, "time": 10}, {"rank": 3, "exitcode": -9, "pid": 8, "time": 11}]
        rank_exits_file(layout, 0, 1).write_text(json.dumps(ends))
        failure = self.finalize(layout).failure
        assert (failure.rank, failure.type) == (3, "SIGKILL")
        assert "out-of-memory killer" in failure.hint

    def test_a_kill_that_the_kernel_counted_is_memory_that_ran_out(self, layout):
        end = {"rank": 1, "exitcode": -9, "pid": 8, "time": 11, "out_of_memory": True}
        rank_exits_file(layout, 2, 1).write_text(json.dumps([end]))
        record = self.finalize(layout)
        assert (record.reason, record.failure.rank) == ("out_of_memory", 1)
        assert "(1) batch.micro_size" in record.failure.hint

    def test_a_rank_lost_in_an_earlier_start_does_not_explain_this_one(self, layout):
        rank_exits_file(layout, 0, 1).write_text(json.dumps([{"rank": 1, "exitcode": -9, "pid": 8, "time": 11}]))
        self.error(layout, 0, ValueError("final"), 20.0, execution=2)
        assert self.finalize(layout).failure.type == "ValueError"

    def test_a_rank_that_torchrun_killed_itself_comes_after_its_peers(self, layout):
        self.error(layout, 0, RuntimeError("Connection reset by peer"), 10.0)
        ends = [{"rank": 0, "exitcode": 1, "pid": 7, "time": 10}, {"rank": 3, "exitcode": -9, "pid": 8, "time": 70}]
        rank_exits_file(layout, 0, 1).write_text(json.dumps(ends))
        assert self.finalize(layout).failure.rank == 0

    def test_an_error_of_an_earlier_execution_is_forgiven(self, layout):
        self.error(layout, 1, ValueError("forgiven"), 10.0, execution=1)
        self.error(layout, 0, ValueError("final"), 20.0, execution=3)
        record = self.finalize(layout)
        assert (record.execution, record.restarts, record.failure.message) == (3, 2, "final")

    def test_torchrun_itself_killed(self, layout):
        failure = self.finalize(layout, -9).failure
        assert (failure.rank, failure.type) == (None, "LaunchFailed")
        assert "SIGKILL" in failure.message

    def test_a_lost_node_is_the_cause_if_all_errors_are_consequences(self, layout):
        self.error(layout, 0, RuntimeError("Connection reset by peer"), 10.0)
        record = self.finalize(layout, lost_nodes=lambda: ["node2"])
        assert (record.reason, record.failure.node, record.failure.consequence) == ("node_failure", "node2", True)
        assert "node lost: node2 ended" in record.failure.message

    def test_an_own_error_is_the_cause_despite_a_lost_node(self, layout):
        self.error(layout, 0, ValueError("mine"), 10.0)
        assert self.finalize(layout, lost_nodes=lambda: pytest.fail("must not be called")).failure.message == "mine"

    def test_a_trace_that_arrives_late_from_another_node_counts(self, layout):
        self.error(layout, 0, RuntimeError("Connection reset by peer"), 10.0)

        def arrive():
            self.error(layout, 1, ValueError("the cause"), 9.0)
            return []

        assert self.finalize(layout, lost_nodes=arrive).failure.message == "the cause"

    def test_killed_by_the_launcher(self, layout):
        record = self.finalize(layout, -9, killed_for="time_limit")
        assert (record.reason, record.failure) == ("time_limit", None)

    def test_memory_error_has_a_hint(self, layout):
        self.error(layout, 1, MemoryError("no more"), 10.0)
        record = self.finalize(layout)
        assert record.reason == "out_of_memory"
        assert "micro_size" in record.failure.hint


class TestOutOfMemory:
    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            OSError("Cannot allocate memory"),
        ],
    )
    def test_out_of_memory_errors_are_recognized(self, error):
        assert is_out_of_memory(error)

    def test_a_mention_of_memory_is_not_enough(self):
        assert not is_out_of_memory(ValueError("out of memory"))


class TestStopRequest:
    def test_a_second_signal_changes_nothing(self, layout):
        request = StopRequest(layout)
        for reason in ("preempted", "preempted", "time_limit"):
            request.request(reason)
        assert layout.stop_request.read_text() == "preempted"

    def test_a_users_cancellation_replaces_a_preemption(self, layout):
        request = StopRequest(layout)
        request.request("preempted")
        request.request("user_cancelled")
        assert layout.stop_request.read_text() == "user_cancelled"


class TestTimeLimit:
    def test_a_limit_is_near_before_it_has_passed(self):
        clock = [0.0]
        limit = TimeLimit(600.0, 60.0, now=lambda: clock[0])
        assert not limit.near
        clock[0] = 541.0
        assert limit.near
        assert not limit.passed
        clock[0] = 600.0
        assert limit.passed

    def test_no_limit(self):
        assert not TimeLimit(float("inf"), 180.0, now=lambda: 1e12).near

    def test_the_partitions_limit_is_the_default(self):
        clock = [0.0]
        limit = TimeLimit.of(document(partition_limit_minutes=10), {}, 0.0, now=lambda: clock[0])
        clock[0] = 541.0
        assert limit.near

    def test_slurms_end_time_takes_precedence(self):
        clock, reported = [0.0], {"SLURM_JOB_END_TIME": "1060"}
        limit = TimeLimit.of(document(time_limit_minutes=600), reported, 1000.0, now=lambda: clock[0])
        clock[0] = 46.0
        assert limit.near
        clock[0] = 60.0
        assert limit.passed

    @pytest.mark.parametrize("skew", [-3600.0, 3600.0, 7200.0])
    def test_a_wrong_clock_of_the_node_does_not_move_the_end(self, skew):
        clock = [0.0]
        reported = {"SLURM_JOB_START_TIME": "10000", "SLURM_JOB_END_TIME": "10600"}
        limit = TimeLimit.of(document(time_limit_minutes=600), reported, 10000.0 + skew, now=lambda: clock[0])
        clock[0] = 400.0
        assert not limit.near
        clock[0] = 600.0
        assert limit.passed

    def test_the_scheduler_is_queried_once_before_each_end(self):
        clock, answers = [0.0], [300.0, 5.0]
        queries = []

        def query():
            queries.append(clock[0])
            return answers.pop(0)

        limit = TimeLimit(100.0, 60.0, now=lambda: clock[0], query=query)
        assert (limit.near, queries) == (False, [])
        clock[0] = 41.0
        assert not limit.near, "an operator has raised the limit"
        clock[0] = 282.0
        assert limit.near
        assert limit.near
        assert queries == [41.0, 282.0]

    def test_an_end_that_is_later_by_a_rounding_error_is_not_queried_again(self):
        clock, queries = [0.0], []

        def query():
            queries.append(clock[0])
            return 59.5 + len(queries) / 10

        limit = TimeLimit(100.0, 60.0, now=lambda: clock[0], query=query)
        clock[0] = 41.0
        assert limit.near
        assert limit.near
        assert queries == [41.0]

    @pytest.mark.parametrize(
        ("printed", "left"),
        [
            ("1-02:03:04", 93784.0),
            ("2:00", 120.0),
            ("1:00:00", 3600.0),
            ("UNLIMITED", None),
            ("INVALID", None),
            ("", None),
        ],
    )
    def test_squeue_knows_the_time_left(self, tmp_path, monkeypatch, printed, left):
        program = tmp_path / "squeue"
        program.write_text(f'#!/bin/sh\n[ "$3" = --jobs=7 ] && echo "{printed}"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        assert slurm_seconds_left({"SLURM_JOB_ID": "7"}) == left
        assert slurm_seconds_left({}) is None

    def test_a_node_without_squeue_knows_nothing(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nonexistent")
        assert slurm_seconds_left({"SLURM_JOB_ID": "7"}) is None

    def test_a_raised_limit_is_used_and_an_earlier_end_is_ignored(self):
        clock = [500.0]
        limit = TimeLimit(100.0, 60.0, now=lambda: clock[0])
        clock[0] = 530.0
        limit.extend(600.0)
        limit.extend(10.0)
        clock[0] = 1069.0
        assert not limit.near
        clock[0] = 1130.0
        assert limit.passed

    def test_time_in_suspension_does_not_count(self):
        clock = [0.0]
        limit = TimeLimit(600.0, 60.0, now=lambda: clock[0])
        clock[0] = 900.0
        limit.add_suspension(800.0)
        assert not limit.near


class TestSuspendDetector:
    def test_a_suspension_is_measured(self):
        clock = [0.0]
        still = SuspendDetector(now=lambda: clock[0])
        clock[0] = 800.0
        assert (still.collect(), still.collect()) == (800.0, 0.0)

    def test_a_suspension_that_its_thread_detected_is_collected(self):
        clock = [0.0]
        still = SuspendDetector(now=lambda: clock[0])
        clock[0] = 800.0
        still.poll()
        clock[0] = 801.0
        assert still.collect() == 800.0

    def test_a_loop_blocked_by_a_disk_is_no_suspension(self):
        """Slurm's time limit is not extended by a slow disk."""
        clock = [0.0]
        still = SuspendDetector(now=lambda: clock[0])
        for second in range(1, 301):
            clock[0] = float(second)
            still.poll()
        assert still.collect() == 0.0


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestProcesses:
    def test_grandchildren_are_listed_and_killed(self):
        program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
        child = subprocess.Popen([sys.executable, "-c", program])
        limit = time.monotonic() + 20
        while not (grandchildren := descendants(child.pid)) and time.monotonic() < limit:
            time.sleep(0.02)
        # This process may have other children, such as the reaper of the databases.
        known = [one for one in descendants(os.getpid()) if one[0] in {child.pid, grandchildren[0][0]}]
        assert len(known) == 2
        kill_remaining(known)
        assert child.wait(10) == -signal.SIGKILL
        while runs(grandchildren[0][0]) and time.monotonic() < limit:
            time.sleep(0.02)
        assert not runs(grandchildren[0][0])

    def test_another_process_of_the_same_number_is_left_alone(self):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        kill_remaining([(child.pid, 1)])
        assert child.poll() is None
        child.kill()
        child.wait()
