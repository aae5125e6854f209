"""What a node that cannot run the attempt does before torchrun is started anywhere."""

import json
from pathlib import Path

import pytest

from tests.unit.worker.test_nodes import SPEC, document, node
from trainyard.contract.layout import AttemptLayout
from trainyard.contract.reports import Claim, FinishRecord
from trainyard.contract.spec import parse_spec
from worker import launch
from worker.launcher.claim import Claimed
from worker.launcher.nodes import publish

PROFILED = parse_spec({**SPEC, "steps": 9, "profile": {"start_step": 2, "steps": 1, "nsys": True}})


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptLayout:
    """An attempt that wants a program of its nodes that this one does not have, and a service that is away."""
    layout = AttemptLayout(tmp_path / "job" / "attempts" / "1")
    layout.logs.mkdir(parents=True)
    layout.token.write_text("secret")
    layout.launch.write_text(document(spec=PROFILED).model_dump_json(by_alias=True))
    claim = Claim(nonce="nonce-0001", host="n0", pid=1)
    monkeypatch.setattr(launch, "claim_attempt", lambda *_: Claimed(3, claim, known_to_service=True))
    monkeypatch.setattr(launch.Signals, "install", lambda _: None)
    monkeypatch.setattr(launch, "_FINISH_SECONDS", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    return layout


def refusal(layout: AttemptLayout) -> FinishRecord:
    return FinishRecord.model_validate_json(layout.finish(3).read_bytes())


def test_the_first_node_sends_the_others_home(layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    launch.run(str(layout.root))
    assert json.loads(layout.rendezvous("7").read_text()) is None, "they would wait for it with their GPUs"
    assert refusal(layout).reason == "rejected"


def test_another_node_has_slurm_end_those_that_wait_for_it(
    layout: AttemptLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    publish(layout, node(), 3)
    with pytest.raises(SystemExit, match="1"):
        launch.run(str(layout.root))
    record = refusal(layout)
    assert (record.reason, record.failure.final if record.failure else None) == ("rejected", True)
