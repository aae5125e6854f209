"""Rules about the data types of parameters, gradients and optimizer state. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.precisions import PRECISIONS
from trainyard.contract.kinds.strategies import AUTO_ON_SEVERAL_RANKS, STRATEGIES, Strategy
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec

ELEMENTWISE = ("sgd", "adam", "adamw", "lion")
"""Optimizers that update each value by itself, so that a part of the parameters can be updated at a time."""


def can_sum_in_buckets(spec: TrainingSpec) -> bool:
    """Return whether gradients may be summed in the data type of the parameters."""
    return spec.param_dtype != "bf16" or spec.grad_dtype != "fp32"


def strategies_for(spec: TrainingSpec) -> Iterator[Strategy]:
    """Yield the strategies that `auto` may become on several ranks, the least sharding first."""
    for name in AUTO_ON_SEVERAL_RANKS:
        if can_sum_in_buckets(spec) or not STRATEGIES[name].sums_in_buckets:
            yield name


def can_be_offloaded(spec: TrainingSpec) -> bool:
    """Return whether parameters and optimizer state may be in host memory, by the rules about `fsdp.cpu_offload`."""
    return spec.optimizer.name != "muon" and spec.optimizer.state_dtype == spec.param_dtype == "fp32"


def can_store_small_moments(spec: TrainingSpec) -> bool:
    """Return whether `optimizer.state_dtype` may be `int8`, and is not."""
    stores = spec.optimizer.name != "sgd" or spec.optimizer.momentum > 0
    return spec.optimizer.state_dtype != "int8" and stores and _can_convert(spec)


def can_store_half_parameters(spec: TrainingSpec) -> bool:
    """Return whether `param_dtype` and `grad_dtype` may be `bf16`, and are not."""
    halves = spec.param_dtype == spec.grad_dtype == "bf16"
    supported = spec.precision_kind.supports_half_parameters and spec.strategy_kind.supports_half_parameters
    return not halves and supported and _can_convert(spec)


def _can_convert(spec: TrainingSpec) -> bool:
    offloads = spec.strategy_kind.is_sharded and spec.fsdp.cpu_offload
    return spec.optimizer.name in ELEMENTWISE and not offloads


def dtype_problems(spec: TrainingSpec, site: Site) -> Iterator[tuple[str, str]]:
    """Yield the field and the message of each data type that cannot be used."""
    if spec.grad_dtype == "bf16" and spec.param_dtype == "fp32":
        yield "grad_dtype", "`bf16` is for parameters in bf16; set `param_dtype: bf16`, or use `fp32`"
    changed = [("optimizer.state_dtype", spec.optimizer.state_dtype), ("param_dtype", spec.param_dtype)]
    for field, dtype in changed:
        if dtype == "fp32":
            continue
        if spec.optimizer.name not in ELEMENTWISE:
            yield field, f"`{dtype}` is not supported with optimizer `{spec.optimizer.name}`; use `adamw`, or `fp32`"
        if spec.strategy_kind.is_sharded and spec.fsdp.cpu_offload:
            yield field, f"`{dtype}` cannot be combined with `fsdp.cpu_offload`; use `fp32`"
    if spec.param_dtype == "bf16":
        yield from _half_parameters(spec, site)


def _half_parameters(spec: TrainingSpec, site: Site) -> Iterator[tuple[str, str]]:
    automatic = spec.precision == "auto" and site.accelerator == "cuda"
    if not spec.precision_kind.supports_half_parameters and not automatic:
        supported = " or ".join(f"`{kind.name}`" for kind in PRECISIONS.values() if kind.supports_half_parameters)
        yield "param_dtype", f"`bf16` is for precision {supported}, and `precision` is `{spec.precision}`"
    strategy = spec.strategy_kind
    if not strategy.supports_half_parameters:
        yield "param_dtype", f"`bf16` cannot be combined with strategy `{strategy.name}`; use `ddp`, or `fp32`"
    if strategy.sums_in_buckets and not can_sum_in_buckets(spec):
        yield (
            "grad_dtype",
            f"`fp32` cannot be combined with `param_dtype: bf16` under strategy `{strategy.name}`, which sums gradients"
            " in the type of the parameters; use `grad_dtype: bf16`, or strategy `zero2`",
        )
