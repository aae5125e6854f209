"""The first non-finite step is reported exactly, and no step waits for the device to detect it."""

import math

import pytest
import torch

from tests.support.ranks import single_rank
from trainyard.contract.spec.sections import Amp
from worker.core.errors import DivergedError
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.precision import Precision

CPU = torch.device("cpu")
FINITE = torch.tensor(1.0)


def watch(policy, precision="fp32"):
    return NonFiniteGuard(policy, Precision(precision, Amp(), CPU), single_rank())


def after(health, steps, bad):
    """Make `steps` updates; `bad` has the loss and the norm of some of them."""
    for step in range(1, steps + 1):
        assert health.allows_update(step, *bad.get(step, (FINITE, FINITE)))
    return health


def tensors(loss, norm):
    return torch.tensor(loss), None if norm is None else torch.tensor(norm)


class TestStop:
    @pytest.mark.parametrize("step", [1, 63, 64, 65, 128, 150])
    @pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.inf), (-math.inf, math.inf), (math.nan, None)])
    def test_names_the_first_step_that_was_not_finite(self, step, values):
        health = after(watch("stop"), 150, {step: tensors(*values), 150: tensors(math.nan, 1.0)})
        with pytest.raises(DivergedError, match=f"at step {step}$"):
            health.check(150)

    def test_finite_steps_pass(self):
        health = after(watch("stop"), 150, {})
        health.check(150)
        health.check(150)

    def test_a_step_after_a_check_is_detected(self):
        health = after(watch("stop"), 70, {})
        health.check(70)
        health.allows_update(71, *tensors(math.inf, 1.0))
        with pytest.raises(DivergedError, match=r"at step 71$"):
            health.check(71)


def test_skip_refuses_the_step_and_counts_it():
    health = watch("skip")
    assert health.allows_update(1, FINITE, FINITE)
    assert not health.allows_update(2, *tensors(math.nan, 1.0))
    assert not health.allows_update(3, *tensors(1.0, math.inf))
    assert health.skipped == 2


def test_ignore_checks_nothing():
    after(watch("ignore"), 3, {2: tensors(math.nan, math.nan)}).check(3)


def test_a_scaler_skips_by_itself_and_the_steps_are_counted():
    health = after(watch("stop", "fp16"), 4, {2: tensors(1.0, math.inf)})
    assert health.skipped == 1
