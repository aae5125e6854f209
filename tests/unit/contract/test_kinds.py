"""The records of kinds: each name of a spec has one, and facts that belong together agree."""

from typing import get_args

import pytest

from trainyard.contract.kinds.precisions import (
    AUTO_ON_CPUS,
    AUTO_ON_GPUS,
    PRECISIONS,
    Precision,
    PrecisionKind,
    precision_kind,
)
from trainyard.contract.kinds.strategies import (
    AUTO_ON_ONE_RANK,
    AUTO_ON_SEVERAL_RANKS,
    CHOSEN_STRATEGIES,
    LEAST_MEMORY,
    STRATEGIES,
    Strategy,
    StrategyKind,
)
from trainyard.contract.kinds.tasks import CODE_TASKS, LOOP_TASKS, TASKS, Task, TaskKind, task_kind, tasks_with
from trainyard.contract.spec.text_sources import TextFormat
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


def test_each_task_of_a_spec_has_a_record() -> None:
    assert tuple(TASKS) == get_args(Task)
    assert TrainingSpec.model_json_schema()["properties"]["task"]["enum"] == list(TASKS)


@pytest.mark.parametrize("kind", TASKS.values(), ids=lambda kind: kind.name)
def test_facts_about_the_model_are_those_of_builtin_tasks(kind: TaskKind) -> None:
    assert kind.is_builtin == bool(kind.reads) == bool(kind.makes) == (kind.evaluation_metrics is not None)
    assert kind.is_builtin or not (kind.builtin_models or kind.transformers_class or kind.pipeline_tag)
    assert bool(kind.builtin_models) == bool(kind.builtin_data)
    assert bool(kind.text_format) == bool(kind.examples)
    assert kind.text_format is None or kind.text_format in get_args(TextFormat)
    assert "eval/loss" in (kind.evaluation_metrics or ("eval/loss",))


def test_sets_of_tasks_follow_from_the_records() -> None:
    assert set(tasks_with(lambda kind: kind.in_loop)) == LOOP_TASKS
    assert set(tasks_with(lambda kind: kind.runs_program or kind.has_own_code)) == CODE_TASKS
    assert tasks_with(lambda kind: kind.writes_texts and kind.replaces_head) == ()


@pytest.mark.parametrize("name", ["a task of another release", None, 7, ["script"]])
def test_an_unknown_task_has_no_facts(name: object) -> None:
    kind = task_kind(name)
    assert not (kind.in_loop)
    assert not (kind.runs_program)
    assert not (kind.has_own_code)
    assert not (kind.tests_communication)
    assert not (kind.reads_texts)


def test_each_precision_of_a_spec_has_a_record() -> None:
    assert tuple(PRECISIONS) == get_args(Precision)
    assert TrainingSpec.model_json_schema()["properties"]["precision"]["enum"] == list(PRECISIONS)
    assert PRECISIONS[AUTO_ON_CPUS].computes_in_fp32
    assert PRECISIONS[AUTO_ON_GPUS].supports_half_parameters


@pytest.mark.parametrize("kind", PRECISIONS.values(), ids=lambda kind: kind.name)
def test_data_types_of_a_precision_agree(kind: PrecisionKind) -> None:
    assert kind.is_half == (kind.computes_in_bf16 or kind.scales_loss)
    assert not (kind.is_half and kind.computes_in_fp32)
    assert kind.computes_in_bf16 or not (kind.converts_linear_layers or kind.supports_half_parameters)


@pytest.mark.parametrize("name", ["int4", None, 7])
def test_an_unknown_precision_has_no_facts(name: object) -> None:
    assert precision_kind(name) == PRECISIONS["auto"]
