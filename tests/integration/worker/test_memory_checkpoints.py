"""Ranks that start again within the attempt resume from memory, with the losses of an undisturbed run, as text."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, processes_of, spooled, wait_for
from tests.integration.worker.test_recovery import ADAMW, EVERY, FSDP, HSDP, MOMENTUM, undisturbed

IN_MEMORY: dict[str, Any] = {"checkpoint.every_steps": None, "checkpoint.memory_steps": 1}
FORKED: dict[str, Any] = {"restart": {"fork_ranks": True}}
SLOW = {"kind": "sleep", "seconds": 0.05}
KILLED = {"kind": "kill", "rank": 1, "step": 13, "restart": 0}


def memory_files() -> set[str]:
    """Return the memory checkpoints' files that any process has open."""
    opened = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("/memfd:trainyard-"):
            opened.add(f"{link.parts[2]} {target}")
    return opened


def resumed_steps(service: FakeService) -> list[int]:
    return [event["data"]["step"] for event in service.events_of_type("memory_checkpoint_loaded")]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "overrides",
    [
        {**FSDP, **FORKED},
        *(pytest.param(overrides, marks=pytest.mark.slow) for overrides in (ADAMW, MOMENTUM, HSDP, *EVERY.values())),
    ],
    ids=["fsdp-2", "adamw-3", "momentum-2", "hsdp-4", *EVERY],
)
def test_killed_rank_repeats_at_most_two_steps(tmp_path: Path, overrides: dict[str, Any]) -> None:
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, {**overrides, **IN_MEMORY})
        attempt = run.run(faults=[SLOW, KILLED])
    expected = undisturbed(run, tmp_path / "reference")
    (step,) = resumed_steps(service)
    assert step in {11, 12}
    before, after = spooled(attempt, 1), spooled(attempt, 2)
    # The service has each point up to the step from which the ranks resumed.
    assert {at: before[at] for at in range(1, step + 1)} == {at: expected[at] for at in range(1, step + 1)}
    assert after == {at: expected[at] for at in range(step + 1, 37)}
    record = finish_of(attempt, 2)
    assert (record.reason, record.step, record.restarts) == ("completed", 36, 1)
    assert [checkpoint.step for checkpoint in run.layout.complete_checkpoints()] == [36]
    assert processes_of(attempt) == []


@pytest.mark.heavy
def test_nodes_resume_together_from_their_memory(tmp_path: Path) -> None:
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, {**MOMENTUM, **IN_MEMORY}, nodes=2)
        attempt = run.run(faults=[SLOW, KILLED])
    expected = undisturbed(run, tmp_path / "reference")
    (step,) = resumed_steps(service)
    assert step in {11, 12}
    assert spooled(attempt, 2) == {at: expected[at] for at in range(step + 1, 37)}
    assert finish_of(attempt, 2).reason == "completed"


@pytest.mark.heavy
def test_third_start_from_one_checkpoint_uses_the_disk(tmp_path: Path) -> None:
    faults = [SLOW, *({**KILLED, "step": 18, "restart": restart} for restart in range(3))]
    with FakeService() as service:
        changes = {**MOMENTUM, "checkpoint.memory_steps": 12}
        run = Run(tmp_path / "job", service.url, changes, max_restarts=3)
        waits = {"kind": "wait_for_checkpoint", "step": 18, "restart": 0, "path": run.manifest(15)}
        attempt = run.run(faults=[waits, *faults])
    assert resumed_steps(service) == [16, 16]
    assert min(spooled(attempt, 4)) == 16
    assert finish_of(attempt, 4).reason == "completed"


@pytest.mark.heavy
def test_killed_launcher_leaves_no_memory(tmp_path: Path) -> None:
    with FakeService() as service:
        run = Run(tmp_path / "job", service.url, {"gpus": 2, "epochs": 10_000, **IN_MEMORY})
        attempt = run.start(faults=[SLOW])
        wait_for(lambda: len(service.series("train/loss")) > 5, "some steps")
        assert memory_files()
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not processes_of(attempt), "the end of the ranks")
    assert not memory_files()
