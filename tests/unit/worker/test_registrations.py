"""The worker has a registration for each task of its loop, each strategy and each precision that is not fp32."""

import torch

from trainyard.contract.kinds.precisions import PRECISIONS
from trainyard.contract.kinds.strategies import CHOSEN_STRATEGIES
from trainyard.contract.kinds.tasks import LOOP_TASKS
from worker.engine.precision import COMPUTE_DTYPE
from worker.engine.strategies.select import WRAPPERS
from worker.tasks.select import BUILDERS


def test_each_task_of_the_loop_has_a_builder() -> None:
    assert set(BUILDERS) == LOOP_TASKS


def test_data_types_are_those_of_the_records() -> None:
    assert list(COMPUTE_DTYPE) == [kind.name for kind in PRECISIONS.values() if kind.is_half]
    in_bf16 = [name for name, dtype in COMPUTE_DTYPE.items() if dtype == torch.bfloat16]
    assert in_bf16 == [kind.name for kind in PRECISIONS.values() if kind.computes_in_bf16]


def test_each_strategy_has_a_wrapper() -> None:
    assert list(WRAPPERS) == [kind.name for kind in CHOSEN_STRATEGIES]
