"""However a run ends, the next execution continues with identical losses, compared as text."""

import json
import signal
import time

import pytest

from tests.integration.worker.harness import (
    FakeService,
    Run,
    finish_of,
    processes_of,
    run_layout,
    spooled,
    wait_for,
)
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.manifest import Manifest

MOMENTUM = {"optimizer.momentum": 0.9, "checkpoint.every_steps": 5, "seed": 11, "batch.micro_size": 2}
ADAMW = {
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 1.0},
    "schedule": {"name": "cosine", "warmup_steps": 5},
    "checkpoint.every_steps": 5,
    "checkpoint.async": False,
    "gpus": 3,
}
FSDP = {**ADAMW, "strategy": "fsdp", "checkpoint.async": True, "gpus": 2}
HSDP = {**MOMENTUM, "strategy": "hsdp", "fsdp.replicas": 2, "gpus": 4}
EVERY = {
    f"{name}-{gpus}": {**FSDP, **how, "gpus": gpus}
    for gpus in (2, 3)
    for name, how in {
        "ddp": {"strategy": "ddp"},
        "zero1": {"strategy": "zero1", "batch.micro_size": 2},
        "zero2": {"strategy": "zero2"},
        "naive": {"fsdp": {"wrap": "naive"}},
        "size": {"fsdp": {"wrap": "size", "min_params": 7}},
        "layer": {},
    }.items()
}
"""Each strategy on 2 and 3 ranks; hsdp on 4."""


def undisturbed(run, folder):
    """Return the losses of the same spec on as many ranks without an interruption."""
    case = {"spec": dump_spec(run.spec), "single": False}
    result = run_layout(run.spec.gpus, {"case": case}, folder)
    return {int(step): value for step, value in result[0]["case"]["series"]["train/loss"].items()}


def killed_after_checkpoint(run, rank, *, checkpoint, step):
    return [
        {"kind": "wait_for_checkpoint", "step": step, "restart": 0, "path": run.manifest(checkpoint)},
        {"kind": "kill", "rank": rank, "step": step, "restart": 0},
    ]


@pytest.mark.heavy
class TestKilledRank:
    @pytest.mark.parametrize(
        ("overrides", "rank"),
        [
            (FSDP, 0),
            pytest.param(ADAMW, 0, marks=pytest.mark.slow),
            *(pytest.param(overrides, 1, marks=pytest.mark.slow) for overrides in (MOMENTUM, HSDP, *EVERY.values())),
        ],
        ids=["fsdp-2", "adamw-3", "momentum-2", "hsdp-4", *EVERY],
    )
    def test_restart_in_the_attempt_keeps_the_losses(self, tmp_path, overrides, rank):
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, overrides)
            attempt = run.run(faults=killed_after_checkpoint(run, rank, checkpoint=10, step=13))
        expected = undisturbed(run, tmp_path / "reference")
        before, after = spooled(attempt, 1), spooled(attempt, 2)
        assert before == {step: expected[step] for step in before}
        assert after == {step: expected[step] for step in range(11, 37)}
        record = finish_of(attempt, 2)
        assert (record.reason, record.step, record.restarts) == ("completed", 36, 1)
        assert service.finishes == [record]
        assert service.series("train/loss") == {
            **{(step, 1): value for step, value in before.items()},
            **{(step, 2): value for step, value in after.items()},
        }
        (restart,) = [event for event in service.events.values() if event["type"] == "restarted_in_place"]
        assert restart["data"] == {"rank": rank, "type": "SIGKILL", "reason": "error"}
        assert "was ended by SIGKILL" in restart["message"]
        resumed = [event for event in service.events.values() if event["type"] == "training_resumed"]
        assert [event["data"]["step"] for event in resumed] == [10]


@pytest.mark.heavy
class TestSeveralNodes:
    def test_all_nodes_restart_when_a_rank_of_one_is_killed(self, tmp_path):
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, MOMENTUM, nodes=2)
            attempt = run.run(faults=killed_after_checkpoint(run, 1, checkpoint=10, step=13))
        expected = undisturbed(run, tmp_path / "reference")
        assert spooled(attempt, 2) == {step: expected[step] for step in range(11, 37)}
        record = finish_of(attempt, 2)
        assert (record.reason, record.step, record.restarts) == ("completed", 36, 1)
        placements = [json.loads(attempt.placement(node).read_text())["ranks"] for node in range(2)]
        assert placements == [[0], [1]]


class TestSignalToLauncher:
    @pytest.mark.heavy
    def test_run_saves_and_the_next_attempt_continues(self, tmp_path):
        slow = [{"kind": "sleep", "seconds": 0.2}]
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, MOMENTUM | {"checkpoint.every_steps": None})
            first = run.start(faults=slow)
            wait_for(lambda: len(service.series("train/loss")) >= 6, "six steps")
            run.process.send_signal(signal.SIGTERM)
            run.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            run.process.send_signal(signal.SIGTERM)
            run.wait(30)
            record = finish_of(first, 1)
            assert record.reason == "preempted"
            assert service.finishes == [record]
            assert first.stop_request.read_text() == "preempted"
            assert [c.step for c in run.layout.complete_checkpoints()] == [record.step]
            second = run.run(2)
        expected = undisturbed(run, tmp_path / "reference")
        assert spooled(first, 1) == {step: expected[step] for step in range(1, record.step + 1)}
        assert spooled(second, 11) == {step: expected[step] for step in range(record.step + 1, 37)}
        assert finish_of(second, 11).reason == "completed"
        assert (run.layout.export / "model.safetensors").is_file()
        assert json.loads((run.layout.export / "export.json").read_text())["step"] == 36

    @pytest.mark.slow
    def test_cancellation_in_a_heartbeat_answer(self, tmp_path):
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, {"epochs": 300})
            attempt = run.start(faults=[{"kind": "sleep", "seconds": 0.05}])
            wait_for(lambda: service.series("train/loss"), "the first step")
            service.stop = "cancel"
            run.wait(20)
        assert finish_of(attempt, 1).reason == "user_cancelled"
        assert processes_of(attempt) == []


@pytest.mark.heavy
class TestDamagedCheckpoint:
    def test_previous_checkpoint_is_used_and_the_damaged_is_reported(self, tmp_path):
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, MOMENTUM | {"gpus": 1, "strategy": "single"})
            run.run(1)
            expected = spooled(run.layout.attempt("1"), 1)
            newest = run.layout.checkpoint(36)
            data = next(newest.root.glob("*.distcp"))
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 1
            data.write_bytes(content)
            incomplete = run.layout.checkpoint(40).root
            incomplete.mkdir()
            wider = Run(tmp_path / "job", service.url, MOMENTUM)
            second = wider.run(2)
        again = spooled(second, 11)
        assert again.keys() == {36}
        assert float(again[36]) == pytest.approx(float(expected[36]), rel=1e-5)
        damaged = [event for event in service.events.values() if event["type"] == "checkpoint_damaged"]
        assert [event["data"]["step"] for event in damaged] == [36]
        assert "has another digest" in damaged[0]["message"]
        assert not incomplete.exists()
        assert [c.step for c in run.layout.complete_checkpoints()] == [35, 36]

    @pytest.mark.slow
    def test_a_run_without_a_valid_checkpoint_does_not_start_again_by_itself(self, tmp_path):
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, MOMENTUM | {"gpus": 1, "strategy": "single"})
            run.run(1)
            steps = [checkpoint.step for checkpoint in run.layout.complete_checkpoints()]
            for checkpoint in run.layout.complete_checkpoints():
                next(checkpoint.root.glob("*.distcp")).write_bytes(b"damaged")
            attempts = [run.run(number) for number in (2, 3)]
        records = [finish_of(attempt, execution) for attempt, execution in zip(attempts, (11, 21), strict=True)]
        assert [record.reason for record in records] == ["rejected", "rejected"]
        assert "all checkpoints of the run are damaged" in records[0].failure.message
        assert "--from-scratch" in records[0].failure.hint
        damaged = [event for event in service.events.values() if event["type"] == "checkpoint_damaged"]
        assert sorted(event["data"]["step"] for event in damaged) == steps


@pytest.mark.slow
class TestRetention:
    def test_latest_and_best_checkpoints_are_retained(self, tmp_path):
        overrides = {
            "gpus": 1,
            "strategy": "single",
            "data": {"source": "builtin", "name": "parity", "examples": 120, "eval_fraction": 0.1},
            "evaluation.every_steps": 3,
            "checkpoint": {"every_steps": 3, "keep_last": 2, "keep_best": {"metric": "eval/loss", "mode": "max"}},
        }
        with FakeService() as service:
            run = Run(tmp_path / "job", service.url, overrides)
            attempt = run.run()
        evaluated = {step: float(value) for step, value in spooled(attempt, 1, "eval/loss").items()}
        best = max(evaluated, key=evaluated.get)
        remaining = [c.step for c in run.layout.complete_checkpoints()]
        last = sorted(service.checkpoints)[-2:]
        assert remaining == sorted({best, *last})
        removed = [step for report in service.checkpoints.values() for step in report["removed_steps"]]
        assert sorted([*removed, *remaining]) == sorted(service.checkpoints)
        manifest = Manifest.model_validate_json(run.layout.checkpoint(best).manifest.read_bytes())
        assert manifest.metrics["eval/loss"] == evaluated[best]
