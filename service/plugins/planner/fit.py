"""Whether a run fits a GPU, and which strategy `auto` selects. Pure functions.

A run fits if it leaves 8 % and 1.5 GiB of the smallest GPU free, for the CUDA context, NCCL's buffers and
fragmentation. It cannot fit if 90 % of the estimate exceeds the largest GPU: estimates are within 10 % of measured
peaks (`docs/planner.md`). Between the two, nothing is claimed.

CPU ranks share the memory of their machine. Each leaves room for Python with torch, and a run cannot fit only if its
parameters, gradients and optimizer state alone exceed that memory.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from service.plugins.planner.block_model import (
    BlockModel,
    block_model,
    examples_per_rank,
    micro_batch_memory,
    state_memory,
)
from service.plugins.planner.devices import Device, largest, smallest
from service.plugins.planner.model_structure import ModelStructure
from service.plugins.planner.step_sizes import Memory
from service.plugins.planner.task_memory import is_upper_bound
from service.plugins.planner.trainable_parameters import TrainableModel, trainable_model
from trainyard.contract.kinds.strategies import AUTO_ON_SEVERAL_RANKS, Strategy
from trainyard.contract.problems import Problem
from trainyard.contract.sizes import GIB, format_size
from trainyard.contract.spec.stored_dtypes import can_sum_in_buckets, strategies_for
from trainyard.contract.spec.training_spec import TrainingSpec

USABLE_SHARE = 0.92
RESERVED_BYTES = int(1.5 * GIB)
HOST_RESERVED_BYTES = GIB // 2
"""Host memory of a CPU rank beside the estimate; a rank with a tiny model uses 0.35 GiB."""
CONFIDENCE = 0.9
"""The share of an estimate that is certain."""


@dataclass(frozen=True)
class Estimate:
    """The memory of a spec on one rank, in bytes."""

    micro_size: int
    least: int
    """Parameters, gradients and optimizer state, without activations."""
    memory: Memory | None = None
    """None: the activations are not known."""
    is_upper_bound: bool = False
    """Whether the examples may be smaller than the counted examples."""

    @property
    def peak(self) -> int:
        return self.memory.peak if self.memory else self.least


@dataclass(frozen=True)
class FitEstimator:
    """Estimates whether specs of one model fit the given devices."""

    structure: ModelStructure
    devices: list[Device] = field(default_factory=list)
    context: int | None = None
    cpu: bool = False
    """The ranks have no GPUs; each device is a rank's share of its machine's memory."""
    _sized: dict[object, BlockModel | Problem] = field(default_factory=dict, compare=False)
    _trained: dict[object, TrainableModel | Problem] = field(default_factory=dict, compare=False)

    def model(self, spec: TrainingSpec) -> BlockModel | Problem:
        """Return the model as the spec trains it, or why it cannot. Cached, because all strategies share it."""
        trained = (spec.lora_rank, spec.lora, spec.trainable)
        optimizer = spec.optimizer
        stored = (optimizer.name, optimizer.state_dtype, optimizer.momentum > 0, spec.ema is not None)
        key = (*trained, spec.precision, spec.param_dtype, spec.fsdp.wrap, spec.fsdp.min_params, *stored)
        if key not in self._sized:
            trainable = self._trained.get(trained) or trainable_model(self.structure, spec)
            self._trained[trained] = trainable
            self._sized[key] = trainable if isinstance(trainable, Problem) else block_model(spec, trainable)
        return self._sized[key]

    def estimate(self, spec: TrainingSpec) -> Estimate | Problem:
        """Estimate a spec for its micro-batch size.

        With `auto`, the size is a rank's share of the batch, or the largest halving of it that fits; if none fits, the
        size with the smallest peak is used.
        """
        model = self.model(spec)
        if isinstance(model, Problem):
            return model
        least = state_memory(spec, model).peak
        micro_size = spec.batch.micro_size
        sizes = [micro_size] if isinstance(micro_size, int) else list(halvings(examples_per_rank(spec)))

        @cache
        def of_size(size: int) -> Estimate:
            memory = micro_batch_memory(spec, model, size, self.context)
            return Estimate(size, least, memory, is_upper_bound(spec))

        whole, *halves = sizes
        if not halves or self._may_fit(of_size(whole)) or of_size(whole).memory is None:
            return of_size(whole)
        # All halvings accumulate gradients, so that a smaller micro-batch needs less. Only the whole share does not
        # accumulate, and may need less than the smallest micro-batch.
        fitting = bisect_left(halves, True, key=lambda size: self._may_fit(of_size(size)))
        if fitting < len(halves):
            return of_size(halves[fitting])
        return min(of_size(whole), of_size(halves[-1]), key=lambda one: one.peak)

    def state_exceeds(self, spec: TrainingSpec) -> bool:
        """Return whether parameters, gradients and optimizer state alone exceed every device, at little cost."""
        model, most = self.model(spec), largest(self.devices)
        return not isinstance(model, Problem) and most is not None and state_memory(spec, model).peak > most

    def _may_fit(self, estimate: Estimate) -> bool:
        fits = self.fits(estimate)
        return bool(fits) if estimate.is_upper_bound and self.devices else fits is not False

    def fits(self, estimate: Estimate) -> bool | None:
        """Return whether the estimate fits every device; None if that is not known."""
        room, most = smallest(self.devices), largest(self.devices)
        if room is None or most is None:
            return None
        if estimate.memory is not None:
            usable = USABLE_SHARE * room - (HOST_RESERVED_BYTES if self.cpu else RESERVED_BYTES)
            if estimate.peak <= usable or not estimate.is_upper_bound:
                return estimate.peak <= usable
        return False if estimate.least > most else None

    def cannot_fit(self, estimate: Estimate) -> bool:
        """Return whether it is certain that the estimate fits no device that the job could get."""
        known = not self.cpu and not estimate.is_upper_bound
        most, sure = largest(self.devices), CONFIDENCE * estimate.peak if known else 0.0
        return most is not None and max(sure, estimate.least) > most


def halvings(share: int) -> Iterator[int]:
    """Yield the micro-batch sizes from a share of the batch down to 1."""
    while share > 1:
        yield share
        share = -(-share // 2)
    yield 1


def choose_strategy(estimator: FitEstimator, spec: TrainingSpec) -> tuple[Strategy, str]:
    """Return the strategy that `auto` becomes on several ranks, and the reason.

    It is the first of `AUTO_ON_SEVERAL_RANKS` that can train the spec and fits; each communicates more than its
    predecessor.

    Args:
        spec: Resolved, with the first that can train it.
    """
    first, *others = strategies_for(spec)
    estimate = estimator.estimate(spec)
    if isinstance(estimate, Problem) or (fits := estimator.fits(estimate)) is None:
        reason = _excluded(spec, ": ") or " for several ranks; whether it fits is not known"
        return first, f"`auto` selects {first}{reason}"
    if fits:
        return first, f"`auto` selects {first}{_excluded(spec, ': ') or ': the whole model fits on each GPU'}"
    for strategy in others:
        sharded = estimator.estimate(spec.model_copy(update={"strategy": strategy}))
        if not isinstance(sharded, Problem) and estimator.fits(sharded):
            needs = f"{first} needs {format_size(estimate.peak)} per GPU, {strategy} {format_size(sharded.peak)}"
            return strategy, f"`auto` selects {strategy}: {needs}"
    excluded = f"{_excluded(spec)}, and " if _excluded(spec) else ""
    return first, f"`auto` selects {first}: {excluded}no strategy fits this spec"


def _excluded(spec: TrainingSpec, start: str = "") -> str:
    """Return why the strategy with the least communication cannot train the spec, after `start`; empty if it can."""
    if can_sum_in_buckets(spec):
        return ""
    return f"{start}`{AUTO_ON_SEVERAL_RANKS[0]}` sums gradients in the type of the parameters, bf16"


_PART_NAMES = {"buckets": "DDP's buckets", "gathered": "gathered parameters", "transient": "temporary buffers"}
"""The names of parts of the memory in texts, where they differ."""


def describe_need(estimator: FitEstimator, estimate: Estimate) -> str:
    """Return a text such as `needs about 38 GiB of 24 GiB per GPU: parameters 12 GiB, ...`."""
    most = largest(estimator.devices)
    room = f"{f' of {format_size(most)}' if most is not None else ''} per {'rank' if estimator.cpu else 'GPU'}"
    if estimator.cpu and most is not None:
        room += f" ({estimator.devices[0].type})"
    if estimate.memory is None:
        return f"needs more than {format_size(estimate.least)}{room}, without activations"
    parts = sorted(estimate.memory.parts.items(), key=lambda part: -part[1])
    shown = ", ".join(
        f"{_PART_NAMES.get(name, name)} {format_size(size)}" for name, size in parts if size >= 0.01 * estimate.peak
    )
    return f"needs about {format_size(estimate.peak)}{room}: {shown}"
