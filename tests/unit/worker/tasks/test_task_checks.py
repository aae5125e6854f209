"""Checks of the values that a custom task returns, and the defaults of members that a user's object lacks."""

import numpy as np
import pytest
import torch
from torch import nn

from trainyard.contract.spec.training_spec import parse_spec
from worker.core.errors import RefusedError
from worker.data.examples import BatchTokens, Examples
from worker.engine.evaluation import held_out_sets
from worker.engine.train_step import task_losses
from worker.engine.trainable import freeze_parameters
from worker.tasks.base import Task, check_losses, check_model, count_tokens
from worker.tasks.custom import CustomTask, load_custom

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


class ForeignExamples:
    """Has the members that the documentation requires, and is no `Examples`."""

    train, held_out = 4, 2

    def train_batch(self, indices, device):
        return (torch.from_numpy(indices),)

    def held_out_batch(self, indices, device):
        return (torch.from_numpy(-indices),)


class ForeignTask:
    """Has the required members, and is no `Task`."""

    tokens_per_example = 3

    def __init__(self, spec):
        self.examples = ForeignExamples()

    def build_model(self):
        self.tokens_per_example = 5
        return nn.Linear(1, 1)

    def weight(self, indices):
        return 7.0

    def loss_sum(self, model, batch):
        return GOOD

    def evaluation_sums(self, model, batch):
        return {"eval/loss": GOOD}


class Derived(CustomTask):
    def __init__(self, spec):
        self.examples = ForeignExamples()
        self.examples.held_out_sets = {"near": 1, "far": 1}
        self.examples.largest = lambda count: np.full(count, 3)

    def build_model(self):
        return nn.Linear(1, 1)

    def losses(self, model, batch):
        return {"first": GOOD, "second": GOOD}

    def optimizers(self, module, spec):
        return {"": torch.optim.SGD(module.parameters())}


class Whole(Derived):
    def __init__(self, spec):
        self.examples = Examples((torch.zeros(6),), 4, 2)


def load(kind):
    return load_custom(SPEC.model_copy(update={"target": f"{__name__}:{kind.__name__}"}))


class TestUsersObjects:
    def test_have_the_members_of_their_class(self):
        task, indices = load(ForeignTask), np.array([0, 1])
        assert (task.weight(indices), task.examples.train, task.examples.held_out) == (7.0, 4, 2)
        (batch,) = task.examples.held_out_batch(indices, torch.device("cpu"))
        assert batch.tolist() == [0, -1]
        assert task_losses(task, nn.Linear(1, 1), (batch,)) == {"": GOOD}
        task.build_model()
        assert count_tokens(task, indices) == BatchTokens(10, 50.0)

    def test_have_the_defaults_of_other_members(self):
        task = load(ForeignTask)
        assert isinstance(task, Task)
        assert isinstance(task.examples, Examples)
        assert (task.optimizers, task.flops_per_example, task.shuffle, tuple(task.classes)) == (None, None, True, ())
        assert task.measured_loss(nn.Linear(1, 1), ()) is None
        assert task.complete_metrics({"eval/loss": 1.0}) == {"eval/loss": 1.0}
        examples = task.examples
        assert (examples.token_counts, examples.order_by_epoch(), examples.mixture, examples.packed) == (
            None,
            None,
            None,
            False,
        )
        assert examples.largest(2).tolist() == [0, 1]
        assert {name: own.tolist() for name, own in held_out_sets(examples, None).items()} == {"": [0, 1]}

    def test_may_have_optional_members(self):
        task = load(Derived)
        assert list(task_losses(task, nn.Linear(1, 1), ())) == ["first", "second"]
        assert list(task.optimizers(nn.Linear(1, 1), SPEC)) == [""]
        assert task.examples.largest(2).tolist() == [3, 3]
        assert {name: own.tolist() for name, own in held_out_sets(task.examples, None).items()} == {
            "near": [0],
            "far": [1],
        }

    def test_of_our_classes_are_used_as_they_are(self):
        task = load(Whole)
        assert (type(task), type(task.examples)) == (Whole, Examples)
