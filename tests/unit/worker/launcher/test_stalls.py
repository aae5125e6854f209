"""A suspicion on node 0, the evidence of all nodes, and the verdict."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.progress_file import ProgressRecord
from worker.launcher.nodes import Node
from worker.launcher.stalls import StallMonitor
from worker.launcher.watchdog import Stall, Watchdog

TIMEOUT = 120.0


class Run:
    """A run of two nodes with a rank each, by a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "attempts" / "1"
        self.layout = AttemptLayout(self.folder)
        self.layout.progress.mkdir(parents=True)
        self.time = 0.0
        self.events: list[tuple[str, str, str, dict[str, Any]]] = []
        self.marks = 0
        self.watchdogs: list[Watchdog] = []
        self.nodes = [self._monitor(node) for node in range(2)]

    def _monitor(self, index: int) -> StallMonitor:
        watchdog = Watchdog(self.layout, 2, TIMEOUT, lambda: 1, now=lambda: self.time)
        self.watchdogs.append(watchdog)
        node = Node(index, 2, "", "7", f"gpu-{index}")
        return StallMonitor(
            self.layout,
            node,
            [watchdog] if node.is_first else [],
            lambda: 1,
            lambda: {index: os.getpid()},
            self,
            now=lambda: self.time,
        )

    def event(self, execution: int, type_: str, level: str, message: str, data: dict[str, Any]) -> None:
        self.events.append((type_, level, message, data))

    def pass_seconds(self, seconds: float, *, moves: bool, nodes: int = 2) -> Stall | None:
        """Poll the nodes twice a second; return the first stall."""
        for number in range(int(seconds * 2)):
            self.time += 0.5
            self.marks += moves
            if moves or not number:
                self._write_progress(behind=0 if moves else 1)
            stalls = [monitor.poll() for monitor in self.nodes[:nodes]]
            if stalls[0]:
                return stalls[0]
        return None

    def _write_progress(self, behind: int) -> None:
        for rank, marks in ((0, self.marks), (1, self.marks - behind)):
            record = ProgressRecord(
                rank=rank, execution=1, marks=marks, position=(3, marks), step=3, phase="forward", in_torch=rank == 0
            )
            self.layout.progress_file(rank).write_text(record.model_dump_json())

    def types(self) -> list[str]:
        return [type_ for type_, *_ in self.events]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_stall_is_reported_within_30_seconds_with_evidence_of_all_nodes(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    assert run.types() == ["stall_limit"]
    run.pass_seconds(30, moves=False)
    assert run.types() == ["stall_limit", "stall_suspected"]
    _, level, message, data = run.events[-1]
    assert (level, data["ranks"], data["limit_seconds"]) == ("warning", [1], 20.0)
    assert message.startswith("No progress for 2")
    assert "Rank 1 on gpu-1 is in step 3 (forward)" in message
    assert [state["rank"] for state in data["states"]] == [0, 1]
    assert (data["title"], data["text"]) == tuple(message.split(". ", 1))


def test_run_that_goes_on_is_reported_too(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    run.pass_seconds(40, moves=False)
    run.pass_seconds(4, moves=True)
    assert run.types() == ["stall_limit", "stall_suspected", "stall_over", "stall_limit"]
    assert [level for _, level, *_ in run.events[2:]] == ["info", "info"]
    run.pass_seconds(40, moves=False)
    assert run.types()[4:] == [], "the limit has risen above the wait"


def test_verdict_is_part_of_the_final_message(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    stall = run.pass_seconds(TIMEOUT + 10, moves=False)
    assert stall is not None
    assert (
        "seconds: rank 1 is behind, in step 3 (forward); the others wait in step 3 (forward). Rank 1" in stall.message
    )
    assert run.types().count("stall_suspected") == 1


def test_node_that_does_not_answer_is_not_awaited(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    run.pass_seconds(32, moves=False, nodes=1)
    assert run.types() == ["stall_limit", "stall_suspected"]
    assert [state["rank"] for state in run.events[-1][3]["states"]] == [0]


def test_only_ranks_of_this_node_count_as_silent(run: Run) -> None:
    """A network filesystem may show the files of another node's ranks much later."""
    run.pass_seconds(60, moves=True)
    run.pass_seconds(30, moves=False)
    assert run.events[-1][3]["kind"] != "interpreter", "rank 1 is on another node"
    evidence = json.loads((run.folder.parent.parent / "artifacts" / run.events[-1][3]["evidence"]).read_text())
    assert evidence["collectives"] == {}


def test_progress_that_a_node_states_itself_counts(run: Run) -> None:
    """On a network filesystem, node 0 may see an old progress file of another node."""
    run.pass_seconds(60, moves=True)
    run.pass_seconds(21, moves=False, nodes=1)
    marks = run.marks + 2
    fresh = ProgressRecord(
        rank=1, execution=1, marks=marks, position=(3, marks), step=3, phase="backward", in_torch=True
    )
    evidence = {"number": 1, "states": [{"rank": 1, "state": "S"}], "records": [fresh.model_dump()]}
    run.layout.rank_states(1).write_text(json.dumps(evidence))
    run.pass_seconds(8, moves=False, nodes=1)
    assert run.types() == ["stall_limit", "stall_suspected"]
    assert run.events[-1][3]["ranks"] == [0]


def enter(run: Run, request: int, *names: str) -> None:
    """Write, as each rank does at a request, the collective that it has entered."""
    run.layout.collectives(0).parent.mkdir(exist_ok=True)
    for rank, name in enumerate(names):
        one = {"number": 7, "name": name, "sizes": [[8]], "bytes": 32, "is_complete": False}
        run.layout.collectives(rank).write_text(json.dumps({"request": request, "groups": {"gloo:0": [one]}}))


def test_ranks_that_stay_in_different_collectives_end_the_run(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    enter(run, 1, "all_reduce", "barrier")
    assert run.pass_seconds(30, moves=False) is None
    assert (run.types()[-1], run.events[-1][3]["kind"]) == ("stall_suspected", "order")
    enter(run, 2, "all_reduce", "barrier")
    stall = run.pass_seconds(25, moves=False)
    assert stall is not None
    assert (stall.behind, stall.host, stall.type) == ((1,), None, "DifferentCollectives")
    assert "seconds, and none can. Rank 1 on gpu-1" in stall.message
    assert "Rank 1 is in barrier 7 ([8], 32 B), but rank 0 is in all_reduce 7 ([8], 32 B)" in stall.message
    assert run.types().count("stall_suspected") == 1


@pytest.mark.parametrize("later", [("all_reduce", "all_reduce"), ("all_gather", "barrier"), ()])
def test_other_evidence_does_not_end_the_run(run: Run, later: tuple[str, ...]) -> None:
    run.pass_seconds(60, moves=True)
    enter(run, 1, "all_reduce", "barrier")
    run.pass_seconds(30, moves=False)
    for request in range(2, 6):
        enter(run, request, *later)
        assert run.pass_seconds(15, moves=False) is None


def test_run_that_goes_on_after_a_proof_is_not_ended(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    enter(run, 1, "all_reduce", "barrier")
    run.pass_seconds(28, moves=False)
    run.pass_seconds(4, moves=True)
    enter(run, 2, "all_reduce", "barrier")
    assert run.pass_seconds(28, moves=False) is None, "the limit has risen above the wait"


def test_without_enough_waits_nothing_is_suspected(run: Run) -> None:
    run.pass_seconds(10, moves=True)
    run.pass_seconds(TIMEOUT - 10, moves=False)
    assert run.types() == []


def test_suspended_time_is_no_wait(run: Run) -> None:
    run.pass_seconds(60, moves=True)
    run.time += 3600
    run.watchdogs[0].add_suspension(3600)
    run.pass_seconds(10, moves=False)
    run.pass_seconds(60, moves=True)
    assert set(run.types()) == {"stall_limit"}
