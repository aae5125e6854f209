"""When a program stands still: on one node, on several, after a suspension, and by real counters."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.wait import wait_until
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.sections import Health
from trainyard.progress_file import ProgressRecord
from worker.core.processes import descendants, kill_remaining
from worker.launcher.idle import Counters, IdleWatch, read_counters, works
from worker.launcher.nodes import Node
from worker.launcher.watchdog import Recovery, Stall, Suspicion

STILL = Counters(processor_seconds=50.0, transferred=10**6, output=500, points=7, gpu_percent=0.0, ranks=2)


class Nodes:
    """The watches of some nodes, by a clock of their own."""

    def __init__(self, folder: Path, count: int = 1, **health: float) -> None:
        self.layout = AttemptLayout(folder)
        self.time = 0.0
        self.counters = [STILL] * count
        self.records: Mapping[int, ProgressRecord] = {}
        self.watches = [
            self._watch(Node(index, count, "", "7"), Health.model_validate(health)) for index in range(count)
        ]

    def _watch(self, node: Node, health: Health) -> IdleWatch:
        def read() -> Counters:
            return self.counters[node.index]

        return IdleWatch(self.layout, node, health, read, lambda: self.records, now=lambda: self.time)

    def work(self, node: int) -> None:
        last = self.counters[node]
        self.counters[node] = replace(last, processor_seconds=last.processor_seconds + 100.0)

    def pass_minutes(self, minutes: float, works_on: int | None = None) -> list[Stall | Suspicion | Recovery]:
        """Poll every second; return what node 0 has noticed."""
        noticed = []
        for _ in range(int(60 * minutes)):
            self.time += 1
            if works_on is not None:
                self.work(works_on)
            changes = [watch.poll() for watch in self.watches]
            assert not any(changes[1:]), "node 0 decides"
            noticed += [changes[0]] if changes[0] else []
        return noticed


def test_program_is_suspected_once_after_ten_minutes_and_may_go_on(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    assert nodes.pass_minutes(9.5) == []
    (suspicion,) = nodes.pass_minutes(30)
    assert isinstance(suspicion, Suspicion)
    assert (suspicion.title, suspicion.limit) == ("The program has stood still for 10 min", 600.0)
    nodes.work(0)
    (recovery,) = nodes.pass_minutes(9)
    assert isinstance(recovery, Recovery)
    assert 39 * 60 < recovery.seconds < 40 * 60


def test_program_that_works_is_never_suspected(tmp_path: Path) -> None:
    assert Nodes(tmp_path).pass_minutes(60, works_on=0) == []


@pytest.mark.parametrize(
    "change",
    [
        {"processor_seconds": 50.3},
        {"processor_seconds": 40.0},
        {"transferred": 10**6 + 50_000},
        {"transferred": 0},
        {"output": 501},
        {"points": 8},
        {"gpu_percent": 3.0},
        {"ranks": 0},
        {"is_remote": True},
    ],
)
def test_each_kind_of_work_counts(change: dict[str, float]) -> None:
    assert works(STILL, replace(STILL, **change), 10.0)  # type: ignore[arg-type]


def test_idle_threads_of_libraries_are_no_work() -> None:
    assert not works(STILL, replace(STILL, processor_seconds=50.15, transferred=10**6 + 30_000), 10.0)


def test_two_ticks_of_a_rank_in_a_short_time_are_no_work() -> None:
    alone = replace(STILL, ranks=1)
    assert not works(alone, replace(alone, processor_seconds=50.019), 0.75)
    assert works(alone, replace(alone, processor_seconds=50.03), 0.75)
    assert not works(alone, replace(alone, processor_seconds=50.09), 10.0)
    assert works(alone, replace(alone, processor_seconds=50.11), 10.0)


def test_work_on_another_node_counts_until_that_node_stands_still(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    assert nodes.pass_minutes(60, works_on=2) == []
    (suspicion,) = nodes.pass_minutes(11)
    assert isinstance(suspicion, Suspicion)
    nodes.work(1)
    (recovery,) = nodes.pass_minutes(1)
    assert isinstance(recovery, Recovery)
    assert not nodes.layout.idle(2).is_symlink()


def test_suspended_time_is_excluded_and_changes_nothing_else(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.pass_minutes(6)
    nodes.time += 3600
    nodes.watches[0].add_suspension(3600)
    assert nodes.pass_minutes(3.5) == []
    assert len(nodes.pass_minutes(1)) == 1


def test_only_a_spec_with_a_stall_timeout_ends_the_program(tmp_path: Path) -> None:
    (suspicion, *stalls) = Nodes(tmp_path, idle_minutes=2, stall_timeout_minutes=5).pass_minutes(5.5)
    assert isinstance(suspicion, Suspicion)
    assert isinstance(stalls[0], Stall)
    assert "stood still for 3" in stalls[0].message
    assert "no process used a processor" in stalls[0].message
    assert not any(isinstance(change, Stall) for change in Nodes(tmp_path, idle_minutes=2).pass_minutes(600))


def test_program_that_reports_progress_is_ended_by_its_progress_alone(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, stall_timeout_minutes=5)
    nodes.records = {0: ProgressRecord(rank=0, execution=1, marks=1, step=3, phase="saving")}
    assert [type(change) for change in nodes.pass_minutes(60)] == [Suspicion]


def test_program_whose_work_is_done_elsewhere_is_noticed(tmp_path: Path) -> None:
    """`srun` and the clients of containers do nothing themselves while their programs work."""
    client = tmp_path / "srun"
    client.write_text("#!/bin/sh\nread line\n")
    client.chmod(0o755)
    torchrun = subprocess.Popen(["sh", "-c", f"{client}; true"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: read_counters(torchrun.pid, [], 0, 0.0).is_remote)
    finally:
        torchrun.communicate(b"\n")


def test_counters_of_real_processes(tmp_path: Path) -> None:
    """A child that computes and ends counts, since its parent has waited for it."""
    log = tmp_path / "rank-0.log"
    log.write_text("five\n")
    text = (
        "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'sum(range(30_000_000))']); time.sleep(60)"
    )
    torchrun = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {text!r}])"]
    )
    try:
        wait_until(lambda: read_counters(torchrun.pid, [log], 3, 0.0).processor_seconds > 0.05)
        counters = read_counters(torchrun.pid, [log], 3, 0.0)
        assert (counters.output, counters.points, counters.ranks) == (5, 3, 1)
        assert counters.transferred > 10_000, "Python reads its modules"
        wait_until(
            lambda: (
                not works(read_counters(torchrun.pid, [log], 3, 0.0), read_counters(torchrun.pid, [log], 3, 0.0), 1.0)
            )
        )
    finally:
        kill_remaining(descendants(torchrun.pid))
        torchrun.kill()
        torchrun.wait()
