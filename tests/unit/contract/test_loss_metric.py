"""Which metric is the loss."""

import pytest

from trainyard.contract.loss_metric import choose_loss, shown_name


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (["eval/loss", "loss", "train/loss"], "train/loss"),
        (["loss", "train_loss"], "loss"),
        (["Loss/train", "Loss/val"], "Loss/train"),
        (["train/lr", "train/train_loss"], "train/train_loss"),
        (["model/total_loss", "model/ce_loss"], "model/ce_loss"),
        (["b_loss", "a_loss"], "a_loss"),
        (["trainLoss", "valLoss"], "trainLoss"),
        (["val_loss", "eval/loss", "Loss/test", "validation.loss", "valLoss"], None),
        (["system/loss", "train/loss_scale", "closs_x", "accuracy"], None),
        (["MyLoss", "LOSS"], "LOSS"),
        ([], None),
    ],
)
def test_the_training_loss_is_chosen_by_its_name(names: list[str], loss: str | None) -> None:
    assert choose_loss(names) == loss


def test_the_training_loss_has_one_name() -> None:
    assert shown_name("train/loss", [None]) == shown_name("Loss/train", [None, "Loss/train"]) == "train loss"
    assert shown_name("eval/loss", ["train/loss"]) == "eval/loss"
