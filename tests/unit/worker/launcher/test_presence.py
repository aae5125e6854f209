import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.launcher.nodes import Node
from worker.launcher.presence import await_others, mark_alive, mark_exited


def node(index: int, count: int = 3, job: str = "7") -> Node:
    return Node(index, count, "127.0.0.1", job, name=f"node{index}")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_node_that_never_ended_is_named_after_the_timeout(tmp_path: Path) -> None:
    layout, clock = AttemptLayout(tmp_path), Clock()
    for index in (0, 1):
        mark_alive(layout, node(index))
    mark_exited(layout, node(0))
    assert await_others(layout, node(0), now=clock, sleep=clock.sleep) == ["node1", "node 2"]
    assert clock.now >= 60


def test_nodes_that_have_ended_are_not_waited_for(tmp_path: Path) -> None:
    layout, clock = AttemptLayout(tmp_path), Clock()
    for index in range(3):
        mark_exited(layout, node(index))
    assert (await_others(layout, node(0), now=clock, sleep=clock.sleep), clock.now) == ([], 0.0)


def test_marks_of_another_scheduler_job_are_ignored(tmp_path: Path) -> None:
    layout, clock = AttemptLayout(tmp_path), Clock()
    mark_exited(layout, node(1, 2, job="8"))
    assert await_others(layout, node(0, 2), now=clock, sleep=clock.sleep) == ["node 1"]


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.write_text("[" * 4000)])
def test_what_another_account_put_in_place_of_a_mark_is_none(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    layout, clock = AttemptLayout(tmp_path), Clock()
    mark_exited(layout, node(1, 2))
    (mark,) = layout.errors.iterdir()
    mark.unlink()
    plant(mark)
    missing: list[str] = []
    wait = threading.Thread(
        target=lambda: missing.extend(await_others(layout, node(0, 2), now=clock, sleep=clock.sleep)), daemon=True
    )
    wait.start()
    wait.join(10)
    assert missing == ["node 1"]


def test_single_node_writes_nothing(tmp_path: Path) -> None:
    mark_alive(AttemptLayout(tmp_path), node(0, 1))
    assert list(tmp_path.iterdir()) == []
