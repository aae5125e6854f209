"""The launcher of a node: rejected specs, and a suspended or blocked loop."""

import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests.unit.worker.launcher.test_nodes import SPEC, context, document, node
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.reports import Claim, FinishRecord
from trainyard.progress_file import ProgressRecord
from worker.launcher import supervise as launch
from worker.launcher.claim import ClaimResult
from worker.launcher.nodes import await_decision, publish
from worker.launcher.stalls import StallMonitor
from worker.launcher.stop_signals import TimeLimit
from worker.launcher.system_reports import NodeSpool
from worker.launcher.watchdog import Watchdog
from worker.reporting.service_client import ServiceClient

PROFILED = parse_spec({**SPEC, "steps": 9, "profile": {"start_step": 2, "steps": 1, "nsys": True}})


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptLayout:
    """Return an attempt whose spec needs a program that this node lacks, with an unreachable service."""
    layout = AttemptLayout(tmp_path / "job" / "attempts" / "1")
    layout.logs.mkdir(parents=True)
    layout.token.write_text("secret")
    layout.launch.write_text(document(spec=PROFILED).model_dump_json(by_alias=True))
    claim = Claim(nonce="nonce-0001", host="n0", pid=1)
    monkeypatch.setattr(launch, "claim_attempt", lambda *_: ClaimResult(3, claim, known_to_service=True))
    monkeypatch.setattr(launch.os, "umask", lambda _: 0)
    monkeypatch.setattr(launch.SignalCounter, "install", lambda _: None)
    monkeypatch.setattr(launch, "_FINISH_SECONDS", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    return layout


def refusal(layout: AttemptLayout) -> FinishRecord:
    return FinishRecord.model_validate_json(layout.finish(3).read_bytes())


def test_the_first_node_sends_the_others_home(layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    launch.run(str(layout.root))
    waits = iter([0.0, 0.0])
    assert await_decision(layout, node(1), now=lambda: next(waits)) is None, "the other nodes must not wait"
    assert refusal(layout).reason == "rejected"


@pytest.mark.parametrize(("seconds", "expected"), [(0, ["start"]), (15, [15, "start"])])
def test_ranks_start_when_the_preceding_attempt_has_settled(
    layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch, seconds: int, expected: list[object]
) -> None:
    layout.launch.write_text(document(settle_seconds=seconds).model_dump_json(by_alias=True))
    calls: list[object] = []

    def fail(*_: object) -> None:
        calls.append("start")
        raise OSError("no torchrun here")

    own, sleep = threading.get_ident(), time.sleep

    def record(seconds: float) -> None:
        # Threads that other tests have left sleep, too.
        if threading.get_ident() == own:
            calls.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(launch.time, "sleep", record)
    monkeypatch.setattr(launch.torchrun, "start", fail)
    monkeypatch.setenv("SLURM_PROCID", "0")
    launch.run(str(layout.root))
    assert calls == expected


def test_rejection_on_another_node_ends_the_waiting_nodes(
    layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    publish(layout, node(), 3)
    with pytest.raises(SystemExit, match="1"):
        launch.run(str(layout.root))
    record = refusal(layout)
    assert (record.reason, record.failure.final if record.failure else None) == ("rejected", True)


def test_a_blocked_disk_is_no_stall_and_does_not_extend_the_limit(layout: AttemptLayout) -> None:
    clock = [0.0]
    limit = TimeLimit(600.0, 60.0, now=lambda: clock[0])
    connect = partial(ServiceClient, "http://127.0.0.1:1", "a1", "secret")
    process = cast("subprocess.Popen[bytes]", None)
    attempt = context(layout, node(count=1), document(nodes=1))
    supervisor = launch.Supervisor(attempt, 3, process, launch.SignalCounter(), limit, None, None)
    watchdog = Watchdog(layout, 1, 300.0, lambda: 3, now=lambda: clock[0])
    supervisor._stalls = StallMonitor(
        layout, node(count=1), [watchdog], lambda: 3, dict[int, int], NodeSpool(layout, 0, connect)
    )
    layout.progress.mkdir()
    progress = ProgressRecord(rank=0, execution=3, marks=1, step=3, phase="forward")
    layout.progress_file(0).write_text(progress.model_dump_json())
    clock[0] = 10.0
    assert watchdog.poll() is None
    clock[0] = 700.0
    supervisor._record_delay(690.0)
    assert limit.passed, "Slurm counts the blocked time"
    assert watchdog.poll() is None, "progress records are on the blocked disk"
    clock[0] = 1100.0
    assert watchdog.poll() is not None
