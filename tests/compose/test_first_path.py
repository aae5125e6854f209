"""The whole path: images, `up`, and presets that train on the nodes in containers."""

import time
from typing import Any

import pytest

from tests.compose.conftest import REPORT_LINES
from tests.support.compose_stack import Stack
from trainyard.contract.spec.templates import fill_template

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

ON_TWO_NODES = {"resources.partition": "main", "resources.gpus_per_node": 1}


def preset(name: str, **changes: Any) -> dict[str, Any]:
    return fill_template(name, ON_TWO_NODES | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize("name", [pytest.param("gpt_fsdp", marks=pytest.mark.smoke), "lora_stdlib"])
def test_presets_train_on_both_nodes(name: str, stack: Stack) -> None:
    began = time.monotonic()
    with stack.client() as client:
        job_id = client.submit(preset(name)).id
        job = client.wait(job_id, timeout=420)
        assert (job.status, job.status_reason) == ("succeeded", "completed"), job.status_message
        assert job.progress is not None
        steps = [point.step for point in client.points(job_id, ["train/loss"])]
        assert steps == sorted(set(steps))
        assert steps[-1] == job.progress.step
        assert job.progress.step in {checkpoint.step for checkpoint in client.checkpoints(job_id)}
        (attempt,) = client.attempts(job_id)
        record = stack.execute("reconciler", "sacct", "-XnP", "-o", "State,NNodes", "-j", str(attempt.scheduler_id))
        assert record.strip() == "COMPLETED|2"
        REPORT_LINES.append(f"{name}: succeeded after {time.monotonic() - began:.0f} s")


@pytest.mark.smoke
def test_the_service_image_is_small_and_has_no_torch(stack: Stack) -> None:
    assert stack.image_megabytes("service") < 400
    with pytest.raises(RuntimeError, match="No module named 'torch'"):
        stack.execute("reconciler", "python", "-c", "import torch")


@pytest.mark.smoke
def test_doctor_finds_nothing_wrong(stack: Stack) -> None:
    assert "ERROR" not in stack.execute("reconciler", "trainyard", "doctor")
