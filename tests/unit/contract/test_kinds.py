"""The records of kinds: each name of a spec has one, and facts that belong together agree."""

from typing import get_args

import pytest

from trainyard.contract.kinds.strategies import (
    AUTO_ON_ONE_RANK,
    AUTO_ON_SEVERAL_RANKS,
    CHOSEN_STRATEGIES,
    LEAST_MEMORY,
    STRATEGIES,
    Strategy,
    StrategyKind,
)
from trainyard.contract.spec.training_spec import TrainingSpec


def test_each_strategy_of_a_spec_has_a_record() -> None:
    assert tuple(STRATEGIES) == get_args(Strategy)
    assert [kind.name for kind in CHOSEN_STRATEGIES] == [name for name in get_args(Strategy) if name != "auto"]
    assert TrainingSpec.model_json_schema()["properties"]["strategy"]["enum"] == list(STRATEGIES)


@pytest.mark.parametrize("kind", STRATEGIES.values(), ids=lambda kind: kind.name)
def test_only_sharded_strategies_have_facts_about_shards(kind: StrategyKind) -> None:
    facts = (kind.reshards_after_forward, kind.accumulates_whole_gradients, kind.replicates_shards)
    assert kind.is_sharded or not any(facts)
    assert not (kind.is_sharded and kind.sums_in_buckets)


def test_automatic_strategies_shard_more_and_more() -> None:
    assert STRATEGIES[AUTO_ON_ONE_RANK].max_ranks == 1
    several = [STRATEGIES[name] for name in AUTO_ON_SEVERAL_RANKS]
    assert several == sorted(several, key=lambda kind: (kind.is_sharded, kind.reshards_after_forward))
    assert not any(kind.max_ranks or kind.needs_gpus or kind.replicates_shards for kind in several)
    assert STRATEGIES[LEAST_MEMORY].is_sharded
    assert STRATEGIES[LEAST_MEMORY].reshards_after_forward
