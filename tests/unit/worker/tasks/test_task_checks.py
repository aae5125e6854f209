"""Checks of the values that a custom task returns."""

import pytest
import torch
from torch import nn

from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.engine.trainable import freeze_parameters
from worker.tasks.base import check_losses, check_model

SPEC = parse_spec({"task": "custom", "target": "mine:build", "steps": 1})
GOOD = torch.zeros((), requires_grad=True)


def test_a_model_is_a_module():
    check_model(SPEC, nn.Linear(1, 1))
    with pytest.raises(RefusedError) as refused:
        check_model(SPEC, {"weights": [1.0]})
    assert str(refused.value) == "target `mine:build`: build_model() returned a dict, not a torch.nn.Module"


def test_a_model_has_something_to_train():
    freeze_parameters(SPEC, nn.Linear(1, 1))
    with pytest.raises(RefusedError, match="the model has no parameter to train"):
        freeze_parameters(SPEC, nn.Linear(1, 1).requires_grad_(False))


class TestLosses:
    def test_are_single_numbers_with_gradients(self):
        check_losses({"": GOOD})
        check_losses({"a": GOOD, "b": GOOD})

    @pytest.mark.parametrize(
        ("losses", "message"),
        [
            ({"": torch.zeros(4, requires_grad=True)}, "loss_sum() returned a tensor of shape [4], not a scalar"),
            ({"": 0.5}, "loss_sum() returned a float, not a tensor"),
            ({"": torch.zeros(())}, "loss_sum() returned a loss without a gradient"),
            ({"a": GOOD, "b": 0.5}, "losses() returned for `b` a float, not a tensor"),
            ([GOOD], "losses() returned a list, not losses by name"),
        ],
    )
    def test_that_are_something_else_are_refused(self, losses, message):
        with pytest.raises(RefusedError) as refused:
            check_losses(losses)
        assert str(refused.value) == message
