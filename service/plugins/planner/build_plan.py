"""A plan as the API returns it, put together from its parts. Pure functions."""

from collections.abc import Iterator, Sequence

from service.plugins.planner.block_model import examples_per_rank
from service.plugins.planner.devices import Device
from service.plugins.planner.fit import Estimate, FitEstimator, describe_need
from service.plugins.planner.host_and_disk import disk_need, host_bytes
from service.plugins.planner.model_reader import ModelInfo
from service.plugins.planner.proposals import propose_changes
from service.plugins.planner.task_memory import MAX_TEXT_TOKENS
from service.plugins.planner.trainable_parameters import TrainableModel
from trainyard.contract.kinds.strategies import AUTO_ON_ONE_RANK, CHOSEN_STRATEGIES, STRATEGIES, Strategy, StrategyKind
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.spec.unsupported import can_be_copied
from trainyard.contract.wire.plans import Change, GpuMemory, MemoryParts, ModelSize, PlanResource, StrategyPlan


def build_plan(
    spec: TrainingSpec,
    model_info: ModelInfo,
    gpus: Sequence[Device],
    *,
    strategy_reason: str,
    cpu: bool,
    script: str | None,
    warnings: Sequence[str],
) -> PlanResource:
    """Return the plan of a resolved spec.

    Args:
        cpu: The workers have no GPUs.
    """
    base = PlanResource(
        spec=dump_spec(spec),
        strategy=spec.strategy,
        strategy_reason=strategy_reason,
        summary=model_info.unknown,
        unknown=model_info.unknown or None,
        gpus=[GpuMemory(type=gpu.type, min_bytes=gpu.min_bytes, max_bytes=gpu.max_bytes) for gpu in gpus],
        script=script,
        accelerator="cpu" if cpu else "cuda",
        warnings=[*warnings, *_warnings(spec)],
    )
    if model_info.structure is None:
        return base
    estimator = FitEstimator(model_info.structure, list(gpus), model_info.context, cpu)
    model = estimator.model(spec)
    if isinstance(model, Problem):
        return base.model_copy(update={"summary": str(model)})
    trainable = model.trainable
    estimate = estimator.estimate(spec)
    assert isinstance(estimate, Estimate)
    fits = estimator.fits(estimate)
    changes = propose_changes(estimator, spec) if fits is False else []
    return base.model_copy(
        update={
            "model": ModelSize(parameters=trainable.structure.count, trained=trainable.trained_count),
            "strategies": list(_strategies(spec, estimator, trainable, cpu=cpu)),
            "fits": fits,
            "summary": _summary(estimator, estimate, fits),
            "changes": [Change(set=one.set, message=one.message, peak_bytes=one.peak) for one in changes],
            "disk": disk_need(spec, trainable),
            "warnings": [*base.warnings, *_uncertainties(estimate, spec), *_memory_warnings(estimator, estimate)],
        }
    )


def _summary(estimator: FitEstimator, estimate: Estimate, fits: bool | None) -> str:
    need = describe_need(estimator, estimate)
    if estimator.cpu and fits is None:
        return f"{need}; this is host memory, because the workers have no GPUs"
    if fits is None:
        unknown = [gpu.type or "GPUs without a type" for gpu in estimator.devices if gpu.min_bytes is None]
        what = ", ".join(unknown) or "the GPUs that it would get"
        if not unknown and estimate.is_upper_bound and estimate.memory is not None:
            return f"{need}, if texts are that long; with shorter ones it may fit"
        if estimate.memory is None and not unknown:
            return f"{need}; whether it fits is not known"
        return f"{need}; the memory of {what} is not known (TRAINYARD_GPU_MEMORY_GB)"
    return f"fits: {need}" if fits else f"does not fit: {need}"


def _strategies(
    spec: TrainingSpec, estimator: FitEstimator, trainable: TrainableModel, *, cpu: bool
) -> Iterator[StrategyPlan]:
    """Yield the estimate of each strategy that this number of ranks allows, the spec's own included."""
    for strategy in _possible(spec, cpu=cpu):
        changed = spec if strategy == spec.strategy else _with_strategy(spec, strategy)
        estimate = estimator.estimate(changed)
        if isinstance(estimate, Problem):
            continue
        memory = estimate.memory
        yield StrategyPlan(
            strategy=strategy,
            micro_size=estimate.micro_size,
            peak_bytes=memory.peak if memory else None,
            state_bytes=estimate.least,
            parts=MemoryParts(**memory.parts) if memory else None,
            peak_phase=memory.phase if memory else None,
            fits=estimator.fits(estimate),
            chosen=strategy == spec.strategy,
            host_bytes=host_bytes(changed, trainable, memory, cpu=cpu),
        )


def _possible(spec: TrainingSpec, *, cpu: bool) -> list[Strategy]:
    if spec.gpus == 1:
        return list(dict.fromkeys((AUTO_ON_ONE_RANK, spec.strategy)))
    return [kind.name for kind in CHOSEN_STRATEGIES if spec.strategy == kind.name or _is_possible(spec, kind, cpu=cpu)]


def _is_possible(spec: TrainingSpec, strategy: StrategyKind, *, cpu: bool) -> bool:
    """Return whether several ranks can train the spec with a strategy."""
    if strategy.max_ranks == 1 or (strategy.needs_gpus and cpu):
        return False
    if strategy.has_one_process and _nodes(spec) > 1:
        return False
    if strategy.copies_layers and not can_be_copied(spec):
        return False
    return not strategy.replicates_shards or _replicas(spec) > 1


def _with_strategy(spec: TrainingSpec, strategy: Strategy) -> TrainingSpec:
    """Return the spec with another strategy, and the replicas that it needs."""
    replicas = _replicas(spec) if STRATEGIES[strategy].replicates_shards else 1
    fsdp = spec.fsdp.model_copy(update={"replicas": replicas})
    return spec.model_copy(update={"strategy": strategy, "fsdp": fsdp})


def _nodes(spec: TrainingSpec) -> int:
    return spec.gpus // min(spec.gpus, spec.resources.gpus_per_node or spec.gpus)


def _replicas(spec: TrainingSpec) -> int:
    """Return the replicas of `hsdp`: the spec's, else one per node, or two on a single node; 1 if it is impossible."""
    several = spec.fsdp.replicas if spec.fsdp.replicas > 1 else _nodes(spec)
    return 2 if several == 1 and spec.gpus > 2 and spec.gpus % 2 == 0 else several


def _warnings(spec: TrainingSpec) -> Iterator[str]:
    strategy = spec.strategy_kind
    if strategy.accumulates_whole_gradients and spec.batch.micro_size == examples_per_rank(spec):
        yield f"{strategy.name} without accumulation is zero2: its gradients are whole only between micro-batches"
    if strategy.is_sharded and spec.gpus == 1 and not spec.fsdp.cpu_offload:
        yield f"{strategy.name} on one rank shards nothing"
    if strategy.has_one_process:
        yield f"the figure of {strategy.name} is for its first GPU, which holds more than the others"


def _memory_warnings(estimator: FitEstimator, estimate: Estimate) -> Iterator[str]:
    """Yield the consequence of a CPU run that exceeds its machine's memory."""
    if not estimator.cpu or estimator.fits(estimate) is not False:
        return
    if estimator.cannot_fit(estimate):
        yield "parameters, gradients and optimizer alone are more than this machine's memory: a job would be rejected"
    else:
        yield "more than this machine's memory: the ranks would swap or be killed by the system"


def _uncertainties(estimate: Estimate, spec: TrainingSpec) -> Iterator[str]:
    if estimate.memory is None:
        yield "the activations of this model family are not known: only parameters, gradients and optimizer are counted"
    elif estimate.is_upper_bound:
        yield (
            "each text is counted with the tokens that it may have: `data.max_length`, or the context of the model up "
            f"to {MAX_TEXT_TOKENS}; shorter ones need less"
        )
    if spec.trainable is not None:
        yield "with `trainable`, activations are an upper bound: those that only frozen layers need are counted too"
    if spec.batch.micro_size == "auto":
        yield (
            f"micro_size is auto. This estimate uses {estimate.micro_size}; the run tests which size fits and may "
            "choose another."
        )
    if spec.compile is True:
        yield "with `compile`, a run needs less memory than is counted here"
