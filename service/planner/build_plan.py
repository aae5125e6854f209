"""A plan put together from its parts. Pure."""

from collections.abc import Iterator, Sequence

from service.planner.devices import Device
from service.planner.fit import Estimate, Question, needs, proposals
from service.planner.host_and_disk import disk_need, host_bytes
from service.planner.model_reader import Found
from service.planner.trainable_parameters import Adapted
from service.planner.work import SHARDED, share_of
from trainyard.contract.problems import Problem
from trainyard.contract.spec.training_spec import TrainingSpec, dump_spec
from trainyard.contract.wire.plans import (
    Change,
    GpuMemory,
    MemoryParts,
    ModelSize,
    PlanResource,
    StrategyPlan,
)


def compose(
    spec: TrainingSpec,
    found: Found,
    gpus: Sequence[Device],
    *,
    why: str,
    cpu: bool,
    script: str | None,
    warnings: Sequence[str],
) -> PlanResource:
    """The answer for a resolved spec.

    Args:
        cpu: The workers have no GPUs.
    """
    base = PlanResource(
        spec=dump_spec(spec),
        strategy=spec.strategy,
        why=why,
        verdict=found.unknown,
        unknown=found.unknown or None,
        gpus=[GpuMemory(type=gpu.type, least_bytes=gpu.least, most_bytes=gpu.most) for gpu in gpus],
        script=script,
        accelerator="cpu" if cpu else "cuda",
        warnings=[*warnings, *_warnings(spec)],
    )
    if found.outline is None:
        return base
    question = Question(found.outline, list(gpus), found.context, cpu)
    model = question.model(spec)
    if isinstance(model, Problem):
        return base.model_copy(update={"verdict": str(model)})
    adapted = model.adapted
    estimate = question.estimate(spec)
    assert isinstance(estimate, Estimate)
    fits = question.fits(estimate)
    changes = proposals(question, spec) if fits is False else []
    return base.model_copy(
        update={
            "model": ModelSize(parameters=adapted.outline.count, trained=adapted.trained_count),
            "strategies": list(_strategies(spec, question, adapted, cpu=cpu)),
            "fits": fits,
            "verdict": _verdict(question, estimate, fits),
            "changes": [Change(set=one.set, message=one.message, peak_bytes=one.peak) for one in changes],
            "disk": disk_need(spec, adapted),
            "warnings": [*base.warnings, *_doubts(estimate, spec), *_excess(question, estimate)],
        }
    )


def _verdict(question: Question, estimate: Estimate, fits: bool | None) -> str:
    told = needs(question, estimate)
    if question.cpu and fits is None:
        return f"{told}; it is the host's memory, since the workers have no GPUs"
    if fits is None:
        unknown = [gpu.type or "GPUs without a type" for gpu in question.devices if gpu.least is None]
        what = ", ".join(unknown) or "the GPUs that it would get"
        if estimate.memory is None and not unknown:
            return f"{told}; whether it fits is not known"
        return f"{told}; the memory of {what} is not known (TRAINYARD_GPU_MEMORY_GB)"
    return f"fits: {told}" if fits else f"does not fit: {told}"


def _strategies(spec: TrainingSpec, question: Question, adapted: Adapted, *, cpu: bool) -> Iterator[StrategyPlan]:
    """Every strategy at the asked number of ranks, the spec's own among them."""
    for strategy in _possible(spec, cpu=cpu):
        changed = spec if strategy == spec.strategy else _with_strategy(spec, strategy)
        estimate = question.estimate(changed)
        if isinstance(estimate, Problem):
            continue
        memory = estimate.memory
        yield StrategyPlan(
            strategy=strategy,
            micro_size=estimate.micro_size,
            peak_bytes=memory.peak if memory else None,
            state_bytes=estimate.least,
            parts=MemoryParts(**memory.parts) if memory else None,
            peak_phase=memory.moment if memory else None,
            fits=question.fits(estimate),
            chosen=strategy == spec.strategy,
            host_bytes=host_bytes(changed, question.outline, adapted, memory, cpu=cpu),
        )


def _possible(spec: TrainingSpec, *, cpu: bool) -> list[str]:
    if spec.gpus == 1:
        return list(dict.fromkeys(("single", spec.strategy)))
    names = ["ddp", "zero1", "zero2", "fsdp"]
    if _replicas(spec) > 1:
        names.append("hsdp")
    if spec.strategy == "dp" or (_nodes(spec) == 1 and not cpu):
        names.insert(0, "dp")
    return names


def _with_strategy(spec: TrainingSpec, strategy: str) -> TrainingSpec:
    """With what goes with it."""
    fsdp = spec.fsdp.model_copy(update={"replicas": _replicas(spec) if strategy == "hsdp" else 1})
    return spec.model_copy(update={"strategy": strategy, "fsdp": fsdp})


def _nodes(spec: TrainingSpec) -> int:
    return spec.gpus // min(spec.gpus, spec.resources.gpus_per_node or spec.gpus)


def _replicas(spec: TrainingSpec) -> int:
    """Of `hsdp`: as the spec says, else one for each node, and two on one; 1 where a rank would hold all of it."""
    several = spec.fsdp.replicas if spec.fsdp.replicas > 1 else _nodes(spec)
    return 2 if several == 1 and spec.gpus > 2 and spec.gpus % 2 == 0 else several


def _warnings(spec: TrainingSpec) -> Iterator[str]:
    if spec.strategy == "zero1" and spec.batch.micro_size == share_of(spec):
        yield "zero1 without accumulation is zero2: its gradients are whole only between micro-batches"
    if spec.strategy in SHARDED and spec.gpus == 1:
        yield f"{spec.strategy} on one rank shards nothing"
    if spec.strategy == "dp":
        yield "dp's figure is that of its first GPU, which holds more than the others"


def _excess(question: Question, estimate: Estimate) -> Iterator[str]:
    """What comes of a run without GPUs that is larger than its machine."""
    if not question.cpu or question.fits(estimate) is not False:
        return
    if question.surely_not(estimate):
        yield "parameters, gradients and optimizer alone are more than this machine's memory: submitted, it is refused"
    else:
        yield "more than this machine's memory: the ranks would swap, or be killed by the system"


def _doubts(estimate: Estimate, spec: TrainingSpec) -> Iterator[str]:
    if estimate.memory is None:
        yield "this family's activations are not known: only parameters, gradients and optimizer are counted"
    if spec.trainable is not None:
        yield "with `trainable` the activations are an upper bound: what only frozen layers need is counted too"
    if spec.batch.micro_size == "auto":
        yield "batch.micro_size is auto: the figures are for the largest halving that should fit; the run tries it out"
    if spec.compile:
        yield "with `compile` less is kept and made on the way than is counted here"
