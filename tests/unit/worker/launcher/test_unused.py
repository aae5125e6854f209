"""Ranks and GPUs that a program leaves unused are a warning, or the end of the job."""

from pathlib import Path
from typing import Any

import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.reports import ExitReason
from worker.launcher.exit_record import finalize
from worker.launcher.script_job import finalize_script
from worker.launcher.unused import GPUS_EVENT, Unused, UnusedGpus, describe_gpus

OPENED, CLOSED = {"processes": 1.0, "utilization_percent": 0.0}, {"processes": 0.0, "utilization_percent": 0.0}


def spec(**health: Any) -> TrainingSpec:
    return parse_spec({"version": 1, "task": "script", "argv": ["/opt/train.py"], "health": health})


def test_only_a_spec_with_stop_ends_the_job(tmp_path: Path) -> None:
    warned: list[tuple[str, str]] = []
    for health, type_ in (({}, None), ({"stop_if_unused": True}, "GpusNeverUsed")):
        unused = Unused(AttemptLayout(tmp_path), spec(**health), lambda *warning: warned.append(warning))
        unused.report(GPUS_EVENT, "GPU 1 is unused")
        assert (unused.failure.type if unused.failure else None) == type_
        other_node = Unused(AttemptLayout(tmp_path), spec(**health), lambda *_: None)
        assert other_node.failure == unused.failure
    assert warned == [(GPUS_EVENT, "GPU 1 is unused")] * 2


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ({0: OPENED, 1: CLOSED}, [1]),
        ({0: CLOSED, 1: CLOSED}, [0, 1]),
        ({0: OPENED, 1: {"processes": 0.0, "utilization_percent": 3.0}}, []),
        ({0: OPENED, 1: {"power_watts": 70.0}}, []),  # its processes cannot be read
        ({}, []),
    ],
)
def test_gpu_that_no_process_opens_for_minutes_is_unused(later: dict[int, Any], expected: list[int]) -> None:
    gpus = UnusedGpus()
    assert gpus.find(dict.fromkeys(later, CLOSED), 1000.0) == []
    assert gpus.find(later, 1010.0) == []
    assert gpus.find(dict.fromkeys(later, CLOSED), 1299.0) == []
    assert gpus.find({gpu: CLOSED if gpu in expected else values for gpu, values in later.items()}, 1300.0) == expected
    assert gpus.find(dict.fromkeys(later, CLOSED), 1400.0) == []


@pytest.mark.parametrize(
    ("unused", "count", "nodes", "begin"),
    [
        ([1], 2, 1, "No process has opened GPU 1 in 5 minutes."),
        ([1, 3], 4, 2, "No process has opened GPUs 1, 3 of node 1 in 5 minutes."),
        ([0, 1], 2, 1, "No process has opened any of the 2 GPUs in 5 minutes."),
        ([0], 1, 1, "No process has opened GPU 0 in 5 minutes."),
    ],
)
def test_message_names_the_gpus(unused: list[int], count: int, nodes: int, begin: str) -> None:
    assert describe_gpus(unused, count, 1, nodes).startswith(begin)


@pytest.mark.parametrize(("stop", "type_"), [(None, "RanksNeverMet"), ("preempted", None)])
def test_ranks_that_have_not_met_until_their_end_fail_the_job(
    tmp_path: Path, stop: ExitReason | None, type_: str | None
) -> None:
    layout = AttemptLayout(tmp_path)
    for folder in (layout.errors, layout.spool):
        folder.mkdir()
    Unused(layout, spec(stop_if_unused=True), lambda *_: None).report(
        "ranks_never_met", "2 ranks have not met until their end"
    )
    finalize_script(layout, 1, 0, stop)
    record = finalize(layout, 1, 0, killed_for=None)
    assert (record.reason, record.failure and record.failure.type) == ("error" if type_ else "completed", type_)
