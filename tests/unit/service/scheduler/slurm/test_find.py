"""Looking for submissions without an answer: few questions, and never an old answer."""

from pathlib import Path

import pytest

from service.scheduler.slurm.scheduler import SlurmScheduler

NOWHERE = Path("/nowhere")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that knows nothing; the file has the arguments of every call."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    log = tmp_path / "calls"
    for name in ("squeue", "sacct"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$*" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    return log


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that the scheduler reads, to be set."""
    now = [1000.0]
    monkeypatch.setattr("service.scheduler.slurm.scheduler.time.monotonic", lambda: now[0])
    return now


def test_many_are_looked_for_with_one_question_each(calls: Path, time: list[float]) -> None:
    tags = [f"ty-{number}" for number in range(30)]
    scheduler = SlurmScheduler(poll_seconds=5)
    for tag in tags:
        time[0] += 0.01
        assert scheduler.find(tag, NOWHERE, tags) == []
    squeue, sacct = calls.read_text().splitlines()
    assert squeue.startswith("squeue")
    assert f"--name={','.join(tags)} " in sacct


def test_the_next_look_is_a_new_one(calls: Path, time: list[float]) -> None:
    scheduler = SlurmScheduler(poll_seconds=5)
    for _ in range(3):
        scheduler.find("ty-1", NOWHERE, ["ty-1"])
        time[0] += 60
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue", "sacct"] * 3


def test_what_nobody_mentioned_is_looked_for_all_the_same(calls: Path, time: list[float]) -> None:
    scheduler = SlurmScheduler(poll_seconds=5)
    scheduler.find("ty-1", NOWHERE, ["ty-1"])
    scheduler.find("ty-2", NOWHERE, ["ty-1"])
    time[0] += 1
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue", "sacct", "sacct"]
    assert "--name=ty-2 " in calls.read_text()
