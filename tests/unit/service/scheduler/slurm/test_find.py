"""Searching for unconfirmed submissions with few and fresh queries."""

from pathlib import Path

import pytest

from service.scheduler.slurm.scheduler import SlurmScheduler

NOWHERE = Path("/nowhere/job_1/attempts/1-a")


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


def test_one_query_each_serves_many_tags(calls: Path, time: list[float]) -> None:
    tags = [f"ty-{number}" for number in range(30)]
    scheduler = SlurmScheduler(poll_seconds=5)
    for tag in tags:
        time[0] += 0.01
        assert scheduler.find(tag, NOWHERE, tags) == []
    squeue, sacct = calls.read_text().splitlines()
    assert squeue.startswith("squeue")
    assert f"--name={','.join(tags)} " in sacct


def test_a_later_search_queries_again(calls: Path, time: list[float]) -> None:
    scheduler = SlurmScheduler(poll_seconds=5)
    for _ in range(3):
        scheduler.find("ty-1", NOWHERE, ["ty-1"])
        time[0] += 60
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue", "sacct"] * 3


def test_a_tag_outside_also_is_searched_separately(calls: Path, time: list[float]) -> None:
    scheduler = SlurmScheduler(poll_seconds=5)
    scheduler.find("ty-1", NOWHERE, ["ty-1"])
    scheduler.find("ty-2", NOWHERE, ["ty-1"])
    time[0] += 1
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue", "sacct", "sacct"]
    assert "--name=ty-2 " in calls.read_text()
