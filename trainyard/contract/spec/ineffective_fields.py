"""Fields that are set but have no effect; they are rejected with an explanation. Pure functions."""

from collections.abc import Iterator

from pydantic import BaseModel

from trainyard.contract.kinds.tasks import quoted, task_kind, tasks_with
from trainyard.contract.problems import Problem
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.objective_rules import ineffective_objectives, objective_metrics
from trainyard.contract.spec.sections import BuiltinData, Evaluation
from trainyard.contract.spec.text_data import TextData, TextMixture, UploadedFiles
from trainyard.contract.spec.training_spec import TrainingSpec

TRAINING_FIELDS = (
    *("strategy", "precision", "param_dtype", "grad_dtype", "lora_rank", "model", "data", "steps", "epochs", "batch"),
    *(
        "objective",
        "preference",
        "loss",
        "embedding",
        "optimizer",
        "ema",
        "schedule",
        "fsdp",
        "ddp",
        "lora",
        "trainable",
        "activation_checkpointing",
    ),
    *("compile", "evaluation", "early_stopping", "checkpoint", "resume_from", "resume", "amp", "tf32", "health"),
    *("profile", "log", "seed"),
)
"""Fields that only Trainyard's training loop reads."""

_OPTIMIZER_FIELDS = {
    "momentum": ("sgd", "muon"),
    "betas": ("adam", "adamw", "lion", "muon"),
    "eps": ("adam", "adamw", "muon"),
}
"""Fields that only some optimizers use."""


def ineffective_fields(spec: TrainingSpec) -> list[Problem]:
    """Return a problem for every field that differs from its default but has no effect in this spec."""
    problems = [*(_ineffective_in_training(spec) if spec.task_kind.in_loop else _ineffective_without_training(spec))]
    of_scripts = {
        "restart.signal": spec.restart.signal,
        "resume_argv": spec.resume_argv or None,
        "keep": spec.keep or None,
        "health.stop_if_unused": spec.health.stop_if_unused or None,
        "health.idle_minutes": spec.health.idle_minutes,
        "launch": spec.launch,
    }
    for field, value in of_scripts.items():
        if not spec.task_kind.runs_program and value is not None:
            users = quoted(tasks_with(lambda kind: kind.runs_program))
            problems.append((field, f"has no effect for task `{spec.task}`; it is for {users}"))
    return [Problem(param=param, message=message) for param, message in problems]


def ignored_fields(task: str) -> frozenset[str]:
    """Return the paths of the fields and sections that a task does not read; empty for tasks of the training loop."""
    kind = task_kind(task)
    if kind.runs_program:
        return frozenset({*TRAINING_FIELDS, "backend", "health.on_nan"} - {"health"})
    return frozenset(TRAINING_FIELDS if kind.tests_communication else ())


def _ineffective_without_training(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    advice = "pass it to your program in `argv`" if spec.task_kind.runs_program else "remove it"
    for path in (name for name in (*TRAINING_FIELDS, "backend", "health.on_nan") if name in ignored_fields(spec.task)):
        section, _, field = path.rpartition(".")
        if _changed(getattr(spec, section) if section else spec, field):
            yield path, f"has no effect for task `{spec.task}`; {advice}"


def _ineffective_in_training(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    optimizer = spec.optimizer
    for field, users in _OPTIMIZER_FIELDS.items():
        if optimizer.name not in users and _changed(optimizer, field):
            yield f"optimizer.{field}", f"has no effect for `{optimizer.name}`; it is for {quoted(users)}"
    if optimizer.name == "sgd" and not optimizer.momentum and _changed(optimizer, "state_dtype"):
        yield (
            "optimizer.state_dtype",
            ("has no effect for `sgd` without momentum, which stores nothing; set `optimizer.momentum`, or use `fp32`"),
        )
    yield from _of_other_tasks(spec)
    if spec.resume_from is None and spec.resume != "state":
        yield "resume", "has no effect without `resume_from`"
    if optimizer.no_decay and not optimizer.weight_decay:
        yield "optimizer.no_decay", "has no effect without `optimizer.weight_decay`"
    if spec.schedule.name == "constant" and _changed(spec.schedule, "final"):
        yield "schedule.final", "has no effect for a `constant` schedule; it is for `linear`, `cosine` and `wsd`"
    if spec.schedule.name != "wsd" and _changed(spec.schedule, "decay_ratio"):
        yield "schedule.decay_ratio", f"has no effect for a `{spec.schedule.name}` schedule; it is for `wsd`"
    yield from _decay(spec)
    yield from _data(spec)
    precision = spec.precision_kind
    if not precision.scales_loss and spec.amp != type(spec.amp)():
        yield "amp", f"has no effect: it is for precision `fp16`, and `precision` is `{spec.precision}`"
    if spec.fsdp.wrap == "naive" and spec.fsdp.prefetch:
        yield "fsdp.prefetch", "has no effect for wrap `naive`, which has only one unit"
    if spec.tf32 and not precision.computes_in_fp32:
        yield "tf32", f"has no effect: it is for precision `fp32`, and `precision` is `{spec.precision}`"
    if spec.lora_rank is None and spec.lora != type(spec.lora)():
        yield "lora", "has no effect without `lora_rank`"
    if spec.lora.merge and not spec.checkpoint.export:
        yield "lora.merge", "has no effect, because `checkpoint.export` is false"
    strategy = spec.strategy_kind
    if not strategy.is_sharded and spec.fsdp.cpu_offload:
        yield "fsdp.cpu_offload", f"has no effect for strategy `{spec.strategy}`; use `fsdp`, also on one GPU"
    elif not strategy.is_sharded and spec.fsdp != type(spec.fsdp)():
        yield "fsdp", f"has no effect for strategy `{spec.strategy}`"
    if not strategy.sums_in_buckets and spec.ddp != type(spec.ddp)():
        yield "ddp", f"has no effect for strategy `{spec.strategy}`"
    yield from ineffective_objectives(spec)
    yield from _evaluation(spec)


def _of_other_tasks(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    task = spec.task_kind
    if not task.has_cross_entropy and spec.loss != type(spec.loss)(neftune_alpha=spec.loss.neftune_alpha):
        users = tasks_with(lambda kind: kind.has_cross_entropy)
        yield "loss", f"has no effect for task `{task.name}`; it is for {quoted(users)}"
    if not task.makes_vectors and _changed(spec, "embedding"):
        users = tasks_with(lambda kind: kind.makes_vectors)
        yield "embedding", f"has no effect for task `{task.name}`; it is for {quoted(users)}"


def _data(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    data = spec.data
    if spec.batch.loaders and not spec.task_kind.has_own_code and not isinstance(data, ImageFiles):
        message = f"has no effect for task `{spec.task}`, whose examples are in memory; it is for source `images` and "
        yield "batch.loaders", message + "task `custom`"
    if isinstance(data, BuiltinData) and data.name != "parity" and _changed(data, "examples"):
        yield "data.examples", f"has no effect for `{data.name}`; it is for `parity`"
    if isinstance(data, TextData | ImageFiles) and data.on_bad_line != "skip" and _changed(data, "max_bad_lines"):
        yield "data.max_bad_lines", "has no effect unless `data.on_bad_line` is `skip`"
    if isinstance(data, TextMixture | ImageFiles) and len(data.sources) == 1 and _changed(data.sources[0], "weight"):
        yield "data.sources.0.weight", "has no effect for a single source"


def _evaluation(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    has_data, advice = _evaluation_data(spec)
    # Samples are generated without evaluation data too.
    timing = () if spec.evaluation.samples else ("every_steps", "first")
    for field in (*timing, "limit", "micro_size"):
        if not has_data and _changed(spec.evaluation, field):
            yield f"evaluation.{field}", f"has no effect without evaluation data; {advice}"
    yield from _early_stopping(spec, has_data=has_data, advice=advice)
    best, known = spec.checkpoint.keep_best, evaluation_metrics(spec)
    if best is None or known is None:
        return
    if not has_data:
        yield "checkpoint.keep_best", f"has no effect without evaluation data; {advice}"
    elif best.metric not in (*known, "train/loss"):
        yield (
            "checkpoint.keep_best.metric",
            f"task `{spec.task}` has no metric `{best.metric}`; use one of {', '.join(known)}",
        )


def evaluation_metrics(spec: TrainingSpec) -> tuple[str, ...] | None:
    """Return the names of the metrics of an evaluation; None for a task that defines its own."""
    metrics = spec.task_kind.evaluation_metrics
    metrics = metrics and (*metrics, *objective_metrics(spec))
    if metrics is None or not isinstance(spec.data, TextData | ImageFiles):
        return metrics
    return metrics + tuple(f"{metric}/{name}" for metric in metrics for name in spec.data.evaluation_sets)


def _early_stopping(spec: TrainingSpec, *, has_data: bool, advice: str) -> Iterator[tuple[str, str]]:
    stopping, known = spec.early_stopping, evaluation_metrics(spec)
    if stopping is None:
        return
    if not has_data:
        yield "early_stopping", f"has no effect without evaluation data; {advice}"
    elif spec.evaluation.every_steps is None:
        yield "early_stopping", "has no effect without evaluations during the run; set `evaluation.every_steps`"
    elif known is not None and stopping.metric not in known:
        yield (
            "early_stopping.metric",
            f"task `{spec.task}` has no evaluation metric `{stopping.metric}`; use one of {', '.join(known)}",
        )
    elif spec.steps is not None:
        yield from _patience(spec.steps, spec.evaluation, stopping.patience)


def _patience(steps: int, evaluation: Evaluation, patience: int) -> Iterator[tuple[str, str]]:
    """Yield the problem of a patience that the evaluations before the last step cannot exhaust. The first evaluation
    has no predecessor, so it counts as the best."""
    every = evaluation.every_steps or steps
    before = (steps - 1) // every + evaluation.first
    if patience < before:
        return
    longest = (steps - 1) // (patience + 1 - evaluation.first)
    advice = "evaluate more often"
    if before > 1:
        advice = f"use {before - 1} or less, or {advice}"
    elif longest:
        advice = f"set `evaluation.every_steps` to {longest} or less"
    evaluations = "evaluation comes" if before == 1 else "evaluations come"
    yield (
        "early_stopping.patience",
        f"is {patience}, but only {before} {evaluations} before the last step, the first of which is the best so far; "
        f"{advice}",
    )


def _decay(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problem of a decay of `wsd` that lasts longer than the warm-up leaves, or never lowers the rate: the
    first step of a decay has the full rate."""
    schedule = spec.schedule
    if schedule.name != "wsd":
        return
    field, ratio = "schedule.decay_ratio", schedule.decay_ratio
    warmup = schedule.warmup_steps / spec.steps if spec.steps else 0.0
    rest = round(1 - (warmup or schedule.warmup_ratio), 6)
    if ratio > rest:
        yield field, f"is {ratio:g}, but the warm-up leaves {rest:g} of the run; use that or less"
    elif spec.steps is not None and (count := round(ratio * spec.steps)) < 2:
        least = f"use {2 / spec.steps:.3g} or more" if spec.steps > 2 else "use `linear`"
        yield field, f"is {ratio:g}, {count} of {spec.steps} steps, but the rate decays from the second one on; {least}"


def _evaluation_data(spec: TrainingSpec) -> tuple[bool, str]:
    """Return whether there is evaluation data, and how to get it."""
    match spec.data:
        case BuiltinData() as data:
            return data.eval_fraction > 0, "set `data.eval_fraction` above 0"
        case TextData() as data:
            single = "eval_id" if isinstance(data, UploadedFiles) else "eval_path"
            return data.has_evaluation, f"set `data.eval_fraction`, `data.{single}` or `data.eval_sets`"
        case ImageFiles() as data:
            return data.has_evaluation, "set `data.eval_fraction` or `data.eval_path`"
    return True, ""


def _changed(section: BaseModel, field: str) -> bool:
    return bool(getattr(section, field) != type(section).model_fields[field].default)
