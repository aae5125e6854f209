"""Changes of a spec that make it fit, and the rejection of a spec that never fits. Pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.plugins.planner.fit import FitEstimator, describe_need, halvings
from trainyard.contract.kinds.strategies import LEAST_MEMORY
from trainyard.contract.problems import Problem
from trainyard.contract.sizes import format_size
from trainyard.contract.spec.stored_dtypes import can_be_offloaded, can_store_half_parameters, can_store_small_moments
from trainyard.contract.spec.training_spec import TrainingSpec

PROPOSED_LORA_RANK = 16
MAX_GPUS = 64

Changes = dict[str, Any]
"""Values by the paths of their fields."""
Candidates = Iterator[tuple[Changes, str]]
"""Changes with a note about their effect."""


@dataclass(frozen=True)
class ProposedChange:
    """A change of a spec that makes it fit."""

    set: Changes
    message: str
    peak: int


def propose_changes(estimator: FitEstimator, spec: TrainingSpec, count: int = 3) -> list[ProposedChange]:
    """Return changes of different kinds that would make a spec fit, the cheapest in time first."""
    proposed: list[ProposedChange] = []
    for kind in _kinds(spec, max_gpus=0 if estimator.cpu else MAX_GPUS):
        change = next(_fitting(estimator, spec, kind), None)
        if change is not None and all(change.set != other.set for other in proposed):
            proposed.append(change)
            if len(proposed) == count:
                break
    return proposed


def exceeds_memory(estimator: FitEstimator, spec: TrainingSpec) -> list[Problem]:
    """Return why a resolved spec can never fit these devices, with the numbers and the cheapest change that fits.

    If the spec's adapters do not match the model, nothing is returned: the worker, which builds the model, decides.
    """
    estimate = estimator.estimate(spec)
    if isinstance(estimate, Problem) or not estimator.cannot_fit(estimate):
        return []
    ways = propose_changes(estimator, spec, count=1)
    changed = "strategy or checkpointing" if estimator.cpu else "strategy, checkpointing or GPUs"
    way = f"; {ways[0].message} would fit" if ways else f"; no change of {changed} would fit"
    return [Problem(param="strategy", message=f"{describe_need(estimator, estimate)}{way}")]


def _fitting(estimator: FitEstimator, spec: TrainingSpec, kind: Candidates) -> Iterator[ProposedChange]:
    for changes, note in kind:
        changed = _changed(spec, changes)
        if estimator.state_exceeds(changed):
            continue
        estimate = estimator.estimate(changed)
        if not isinstance(estimate, Problem) and estimate.memory is not None and estimator.fits(estimate):
            described = " and ".join(f"{path} {value}" for path, value in changes.items())
            yield ProposedChange(changes, f"{described}{note}: {format_size(estimate.peak)}", estimate.peak)


def _kinds(spec: TrainingSpec, *, max_gpus: int) -> Iterator[Candidates]:
    """Yield the changes of each kind with a note, the cheapest kind first.

    A smaller micro-batch costs nearly nothing, sharding costs communication, and full activation checkpointing costs
    one more forward, a third of the arithmetic (Chen et al. 2016, arXiv:1604.06174); with offload also copies of the
    inputs of layers. Moments in fewer bits are converted in each update, and parameters in host memory copied in each
    step. For CPU ranks, which share their machine's memory, `max_gpus` is 0.
    """
    micro = spec.batch.micro_size
    sizes = list(halvings(micro))[1:] if isinstance(micro, int) else []
    smaller: Changes = {"batch.micro_size": sizes[-1]} if sizes else {}
    yield (({"batch.micro_size": size}, "") for size in sizes)
    if spec.lora_rank is not None and _can_round_base(spec):
        yield iter([({"lora.base_dtype": "bf16"}, "")])
    can_shard = spec.gpus > 1 and not spec.strategy_kind.reshards_after_forward
    sharded: Changes = {"strategy": LEAST_MEMORY} if can_shard else {}
    if sharded:
        yield ((sharded | others, "") for others in (({}, smaller) if smaller else ({},)))
    kinds: list[Changes] = [{"activation_checkpointing": how} for how in _recomputations(spec, on_gpus=max_gpus > 0)]
    recompute = kinds[-1] if kinds else {}
    yield ((others | how, "") for how in kinds for others in ({}, sharded | smaller))
    yield _smaller_states(spec, sharded | smaller | recompute)
    if max_gpus and not spec.fsdp.cpu_offload and can_be_offloaded(spec):
        yield iter([_offload(spec, smaller | recompute)])
    yield ((more | others, "") for more in _more_gpus(spec, max_gpus) for others in (smaller, smaller | recompute))
    yield from _adapters(spec, smaller | recompute, sharded | smaller | recompute)


def _recomputations(spec: TrainingSpec, *, on_gpus: bool) -> list[str]:
    """Return the kinds of activation checkpointing that need less memory than the spec's, the quickest first."""
    kinds = ["full", "offload"] if on_gpus else ["full"]
    return kinds[kinds.index(spec.activation_checkpointing) + 1 :] if spec.activation_checkpointing in kinds else kinds


def _smaller_states(spec: TrainingSpec, others: Changes) -> Candidates:
    """Yield data types in which moments, and then gradients too, need fewer bits. Adapters have few of them."""
    if spec.lora_rank is not None:
        return
    moments: Changes = {"optimizer.state_dtype": "int8"} if can_store_small_moments(spec) else {}
    gradients: Changes = {"grad_dtype": "bf16"} if spec.grad_dtype != "bf16" else {}
    halves: Changes = {"param_dtype": "bf16"} | gradients if can_store_half_parameters(spec) else {}
    for more in ({}, others) if others else ({},):
        if moments:
            yield moments | more, " (rounds moments, so the result differs)"
        if halves:
            rounded = "parameters, gradients and moments" if moments else "parameters and gradients"
            yield halves | moments | more, f" (rounds {rounded}, so the result differs)"


def _offload(spec: TrainingSpec, others: Changes) -> tuple[Changes, str]:
    strategy = {} if spec.strategy_kind.is_sharded else {"strategy": LEAST_MEMORY}
    changes = strategy | others | {"fsdp.cpu_offload": True}
    return changes, " (slow: parameters and optimizer state in host memory)"


def _more_gpus(spec: TrainingSpec, max_gpus: int) -> Iterator[Changes]:
    gpus = spec.gpus * 2
    while gpus <= min(max_gpus, spec.batch.size):
        yield {"gpus": gpus, "strategy": spec.strategy if spec.strategy_kind.replicates_shards else LEAST_MEMORY}
        gpus *= 2


def _adapters(spec: TrainingSpec, unsharded: Changes, sharded: Changes) -> Iterator[Candidates]:
    """Yield adapters, and adapters of a base in nf4. They are other trainings."""
    if spec.trainable is not None:
        return
    rank = {} if spec.lora_rank is not None else {"lora_rank": PROPOSED_LORA_RANK}
    if rank:
        note = " (trains only adapters, so the result differs)"
        yield ((rank | others, note) for others in ({}, sharded))
    if _can_round_base(spec):
        note = " (rounds the base, so the result differs)"
        yield ((rank | {"lora.base_dtype": "nf4"} | others, note) for others in ({}, unsharded, sharded))


def _can_round_base(spec: TrainingSpec) -> bool:
    supported = spec.task_kind.supports_low_bit_bases and spec.strategy_kind.supports_low_bit_bases
    return supported and spec.lora.base_dtype == "fp32"


def _changed(spec: TrainingSpec, changes: Changes) -> TrainingSpec:
    plain = {path: value for path, value in changes.items() if "." not in path}
    for path in changes.keys() - plain.keys():
        section, field = path.split(".")
        plain[section] = getattr(spec, section).model_copy(update={field: changes[path]})
    return spec.model_copy(update=plain)
