"""Acceptance of a spec: rejects values that the site does not support, and gives every `auto` a value."""

from dataclasses import replace
from typing import Any

from trainyard.contract.kinds.precisions import AUTO_ON_CPUS, AUTO_ON_GPUS
from trainyard.contract.kinds.strategies import AUTO_ON_ONE_RANK, LEAST_MEMORY
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.ineffective_fields import ineffective_fields
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.stored_dtypes import strategies_for
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.spec.unsupported import unsupported_fields

COMPILED_STEPS = 50
"""Runs with `compile: auto` and more steps than this are compiled: the compilation takes one to two minutes."""
STALL_MINUTES = 15.0
"""Default of `health.stall_timeout_minutes` for the tasks that Trainyard's own loop trains."""


def resolve(spec: TrainingSpec, site: Site) -> TrainingSpec:
    """Return the spec with a value for every `auto`.

    `batch.micro_size` stays `auto`: the first execution measures it. While the accelerator is unknown, a spec that
    depends on it is returned unchanged.

    Raises:
        SpecError: the spec has an unsupported or an ineffective field; no field is silently ignored.
    """
    if site.accelerator is None:
        return _resolve_without_accelerator(spec, site)
    if spec.strategy == "auto" and spec.fsdp.cpu_offload and spec.task_kind.in_loop:
        # Parameters in host memory are gathered on the GPU as shards are.
        spec = spec.model_copy(update={"strategy": LEAST_MEMORY})
    if problems := unsupported_fields(spec, site):
        raise SpecError(problems)
    resolved = spec.model_copy(update=_auto_values(spec, site))
    if problems := ineffective_fields(resolved):
        raise SpecError(problems)
    return resolved


def _auto_values(spec: TrainingSpec, site: Site) -> dict[str, Any]:
    cuda = site.accelerator == "cuda"
    values: dict[str, Any] = {}
    if spec.task_kind.in_loop:
        if spec.strategy == "auto":
            values["strategy"] = AUTO_ON_ONE_RANK if spec.gpus == 1 else next(strategies_for(spec))
        if spec.precision == "auto":
            values["precision"] = AUTO_ON_GPUS if cuda else AUTO_ON_CPUS
        if spec.compile == "auto":
            values["compile"] = cuda and _is_worth_compiling(spec)
        if spec.health.stall_timeout_minutes is None:
            values["health"] = spec.health.model_copy(update={"stall_timeout_minutes": STALL_MINUTES})
    if not spec.task_kind.runs_program and spec.backend == "auto":
        values["backend"] = "nccl" if cuda else "gloo"
    if site.scheduler == "slurm" and site.gpus_per_node and spec.resources.gpus_per_node is None:
        per_node = min(spec.gpus, site.gpus_per_node)
        values["resources"] = spec.resources.model_copy(update={"gpus_per_node": per_node})
    return values


def _is_worth_compiling(spec: TrainingSpec) -> bool:
    """Return whether the steps are expected to save more time than the compilation takes. The number of steps of epochs
    is not known here; it is taken for large."""
    long_enough = spec.steps is None or spec.steps > COMPILED_STEPS
    return long_enough and not spec.task_kind.has_own_code and not spec.strategy_kind.copies_layers


def _resolve_without_accelerator(spec: TrainingSpec, site: Site) -> TrainingSpec:
    """Resolve for both accelerators: equal results are final, and a spec that neither supports is rejected now."""
    try:
        with_gpus = resolve(spec, replace(site, accelerator="cuda"))
    except SpecError:
        resolve(spec, replace(site, accelerator="cpu"))
        return spec
    try:
        without_gpus = resolve(spec, replace(site, accelerator="cpu"))
    except SpecError:
        return spec
    return with_gpus if with_gpus == without_gpus else spec
