"""Memory checkpoints are as frequent as their cost allows, and complete only with the points of their step."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ranks import single_rank
from worker.checkpoint.memory_checkpoint import find_newer
from worker.checkpoint.memory_files import MemoryFile
from worker.core.stop_signal import StopSignal
from worker.engine.memory_schedule import Every, MemorySchedule, interval
from worker.engine.step_sync import StepSync
from worker.reporting.reporter import NullReporter

GIGABYTE = 10**9


class Reports(NullReporter):
    """Records events; `flush` returns once `written` is set."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.written = threading.Event()
        self.written.set()

    def event(self, type_: str, message: str, **more: Any) -> None:
        self.events.append((type_, more["level"]))
        self.messages.append(message)

    def flush(self) -> None:
        assert self.written.wait(10)


class Training:
    """A loop with a schedule of memory checkpoints, as the trainer has it."""

    def __init__(self, folder: Path, every: Every, free: int = GIGABYTE) -> None:
        for name in ("a", "b"):
            (folder / name).touch()
        self.folder, self.ranks, self.reports, self.clock = folder, single_rank(), Reports(), 0.0
        self.sync = StepSync(self.ranks, StopSignal(folder / "stop"), now=lambda: self.clock)
        self.schedule = MemorySchedule(
            every, self.files(), self.ranks, self.sync, self.reports, free=lambda: free, now=lambda: self.clock
        )
        self.weight = torch.zeros(3)
        self.written: list[int] = []

    def files(self) -> list[MemoryFile]:
        return [MemoryFile(self.folder / name) for name in ("a", "b")]

    def run(self, first: int, last: int, *, seconds: float = 1.0, blocked: float = 0.0) -> None:
        for step in range(first, last + 1):
            self.clock += seconds
            self.schedule.wait_copied()
            self.weight += 1
            if self.schedule.due(step):
                self.schedule.write(step, lambda: self.capture(blocked), {})
                self.written.append(step)
            self.sync.should_stop()

    def capture(self, blocked: float) -> dict[str, Any]:
        self.clock += blocked
        return {"model": {"weight": self.weight}}

    def resumed(self) -> tuple[int, list[float]] | None:
        """Return the step and the weight of a start from memory."""
        stored = find_newer(0, self.ranks, self.files())
        if stored is None:
            return None
        loaded = {"model": {"weight": torch.full((3,), -1.0)}}
        stored.load(loaded)
        return stored.step, loaded["model"]["weight"].tolist()


@pytest.fixture
def training(tmp_path: Path) -> Callable[..., Training]:
    return lambda every, **options: Training(tmp_path, every, **options)


@pytest.mark.parametrize(
    ("every", "cost", "seconds", "steps"),
    [
        (1, 0.0, 1.0, 1),
        (7, 99.0, 1.0, 7),
        ("auto", 0.0, 1.0, 10),
        ("auto", 0.03, 1.0, 1),
        ("auto", 0.0301, 1.0, 2),
        ("auto", 3.0, 1.0, 100),
        ("auto", 0.0001, 1.0, 1),
        ("auto", 99.0, 0.0, 10_000),
    ],
)
def test_interval_follows_the_cost(every: Every, cost: float, seconds: float, steps: int) -> None:
    assert interval(every, cost, seconds) == steps


def test_each_step_after_the_first_three(training: Callable[..., Training]) -> None:
    run = training(1)
    run.run(1, 8)
    run.schedule.close()
    assert run.written == [3, 4, 5, 6, 7, 8]
    assert run.resumed() == (8, [8.0, 8.0, 8.0])


def test_auto_spends_three_percent(training: Callable[..., Training]) -> None:
    run = training("auto")
    run.run(1, 400, blocked=0.29)
    assert run.written[:4] == [3, 4, 14, 24]
    assert {later - earlier for earlier, later in zip(run.written[3:], run.written[4:], strict=False)} == {10}
    run.run(401, 900, blocked=1.19)
    assert run.written[-1] - run.written[-2] == 40


def test_step_without_its_points_is_no_checkpoint(training: Callable[..., Training]) -> None:
    run = training(1)
    run.run(1, 5)
    run.schedule.close()
    run.reports.written.clear()
    run.run(6, 6)
    run.schedule.wait_copied()
    assert run.resumed() == (5, [5.0, 5.0, 5.0])
    run.reports.written.set()
    run.schedule.close()
    assert run.resumed() == (6, [6.0, 6.0, 6.0])


@pytest.mark.parametrize(("every", "level"), [("auto", "info"), (5, "warning")])
def test_too_little_memory_is_an_event(training: Callable[..., Training], every: Every, level: str) -> None:
    run = training(every, free=50)
    run.run(1, 40)
    assert run.reports.events == [("memory_checkpoints_off", level)]
    (message,) = run.reports.messages
    assert message.startswith("checkpoint.memory_steps has no effect: the ranks of a node need 24 B, more than")
    assert message.endswith("of its 50 B of free memory; request more with resources.memory_gb_per_gpu")
    assert run.written == [3]
    assert run.resumed() is None


def test_failure_to_write_does_not_end_the_run(training: Callable[..., Training], monkeypatch, caplog) -> None:
    run = training(1)

    def begin(*_: object) -> memoryview:
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFile, "begin", begin)
        run.run(1, 8)
        run.schedule.close()
    assert caplog.text.count("cannot be written: no memory") == 1
    assert run.resumed() is None
    run.run(9, 9)
    run.schedule.close()
    assert run.resumed() == (9, [9.0, 9.0, 9.0])
