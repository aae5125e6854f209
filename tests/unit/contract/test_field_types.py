"""Text fields of a spec, whatever their value looks like."""

import pytest

from trainyard.contract.spec.field_types import is_text


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "metadata",
        "metadata.team",
        "task",
        "resume_from",
        "argv",
        "trainable",
        "lora.targets",
        "model.path",
        "resources.partition",
        "environment.variables.OMP_NUM_THREADS",
        "checkpoint.keep_best.metric",
    ],
)
def test_text_only_fields_are_text(path: str) -> None:
    assert is_text(path)


@pytest.mark.parametrize(
    "path",
    [
        "version",
        "gpus",
        "compile",
        "model",
        "model.sizes",
        "batch.micro_size",
        "optimizer",
        "optimizer.betas",
        "checkpoint.async",
        "checkpoint.keep_best",
        "metadata.a.b",
        "nope",
        "",
    ],
)
def test_other_fields_are_not_text(path: str) -> None:
    assert not is_text(path)
