"""The worker has a registration for each strategy that a training can have."""

from trainyard.contract.kinds.strategies import CHOSEN_STRATEGIES
from worker.engine.strategies.select import WRAPPERS


def test_each_strategy_has_a_wrapper() -> None:
    assert list(WRAPPERS) == [kind.name for kind in CHOSEN_STRATEGIES]
