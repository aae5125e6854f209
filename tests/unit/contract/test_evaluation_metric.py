"""Which metric tells how good a job is, and which of its values are better."""

from typing import Any

import pytest

from trainyard.contract.evaluation_metric import choose_evaluation, is_higher_better


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("eval/accuracy", True),
        ("acc@1", True),
        ("val_f1", True),
        ("eval/loss", False),
        ("accuracy_loss", False),
        ("valAcc", True),
        ("win_rate", True),
        ("x", False),
    ],
)
def test_the_best_value_depends_on_the_name(metric: str, higher: bool) -> None:
    assert is_higher_better(metric) is higher


@pytest.mark.parametrize(
    ("names", "evaluation"),
    [
        (["train/loss", "eval/loss", "eval/accuracy", "eval/f1"], "eval/accuracy"),
        (["eval/loss", "eval/loss/news", "eval/recall_at_1"], "eval/recall_at_1"),
        (["eval/loss/news", "eval/loss"], "eval/loss"),
        (["test_acc", "val_loss"], "val_loss"),
        (["valLoss", "loss"], "valLoss"),
        (["eval/runtime", "eval/samples_per_second", "train/accuracy", "accuracy"], None),
        ([], None),
    ],
)
def test_the_metric_of_the_evaluation_is_chosen_by_its_name(names: list[str], evaluation: str | None) -> None:
    assert choose_evaluation(names, {}) == evaluation


@pytest.mark.parametrize(
    "spec",
    [
        {"early_stopping": {"metric": "eval/f1"}, "checkpoint": {"keep_best": None}},
        {"early_stopping": None, "checkpoint": {"keep_best": {"metric": "eval/f1"}}},
    ],
)
def test_the_metric_that_the_spec_selects_by_is_preferred(spec: dict[str, Any]) -> None:
    assert choose_evaluation(["eval/accuracy", "eval/f1"], spec) == "eval/f1"
    assert choose_evaluation(["eval/accuracy"], spec) == "eval/accuracy"
