import pytest

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.rank.main import describe_start, record_failure


def test_failure_is_logged_without_its_error_file(tmp_path, caplog):
    layout = AttemptLayout(tmp_path)
    layout.errors.write_text("a file in place of the folder, which fails as a full disk does")
    try:
        raise RuntimeError("the step failed")
    except RuntimeError as error:
        record_failure(layout, error, 0, 1, None)
    assert "the error file cannot be written" in caplog.text
    assert "RuntimeError: the step failed" in caplog.text


@pytest.mark.parametrize(
    ("strategy", "world", "device", "start", "text"),
    [
        ("ddp", 2, "cpu", 0, "Training: DDP, fp32, 2 CPU ranks, 276 steps"),
        ("single", 1, "cuda", 0, "Training: single, fp32, 1 GPU rank, 276 steps"),
        ("zero1", 4, "cuda", 100, "Training: zero1, fp32, 4 GPU ranks, from step 100 of 276"),
    ],
)
def test_start_is_described_by_layout_and_length(strategy, world, device, start, text):
    spec = TrainingSpec.model_construct(strategy=strategy, precision="fp32")
    assert describe_start(spec, world, device, start, 276) == text
