"""Fields that were set and would change nothing: told, so that nobody believes in them. Pure."""

from collections.abc import Iterator

from pydantic import BaseModel

from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import BuiltinData, JsonlData
from trainyard.contract.spec.training_spec import LOOP_TASKS, TrainingSpec

EVALUATION_METRICS = {
    "image_classification": ("eval/loss", "eval/accuracy"),
    "causal_lm": ("eval/loss",),
    "regression": ("eval/loss",),
}
TRAINING_FIELDS = (
    *("strategy", "precision", "lora_rank", "model", "data", "steps", "epochs", "batch", "optimizer", "schedule"),
    *("fsdp", "ddp", "lora", "trainable", "activation_checkpointing", "compile", "evaluation", "checkpoint"),
    *("resume_from", "amp", "tf32", "health", "profile", "log", "seed"),
)
"""What only our own loop reads."""

SHARDED = frozenset({"zero1", "zero2", "fsdp", "hsdp"})


def ineffective_fields(spec: TrainingSpec) -> list[Problem]:
    """Every field that differs from its default and has no effect in this spec, with what would give it one."""
    found = _unused(spec) if spec.task in LOOP_TASKS else _beside_the_loop(spec)
    return [Problem(param=param, message=message) for param, message in found]


def _beside_the_loop(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    meant = "pass it to your program in `argv`" if spec.task == "script" else "leave it out"
    script = spec.task == "script"
    for field in (*TRAINING_FIELDS, "backend") if script else TRAINING_FIELDS:
        if _changed(spec, field) and not (script and field == "health"):
            yield field, f"means nothing to task `{spec.task}`; {meant}"
    if script and _changed(spec.health, "on_nan"):
        yield "health.on_nan", f"means nothing to task `script`; {meant}"


def _unused(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    optimizer, data = spec.optimizer, spec.data
    if optimizer.name != "sgd" and _changed(optimizer, "momentum"):
        yield "optimizer.momentum", f"means nothing to `{optimizer.name}`; it is for `sgd`"
    if optimizer.name == "sgd" and _changed(optimizer, "betas"):
        yield "optimizer.betas", "means nothing to `sgd`; it is for `adam` and `adamw`"
    if spec.schedule.name == "constant" and _changed(spec.schedule, "final"):
        yield "schedule.final", "means nothing to a `constant` schedule; it is for `linear` and `cosine`"
    if isinstance(data, BuiltinData) and data.name != "parity" and _changed(data, "examples"):
        yield "data.examples", f"means nothing to `{data.name}`, which has what it has; it is for `parity`"
    if spec.precision != "fp16" and spec.amp != type(spec.amp)():
        yield "amp", f"is for precision `fp16`; this run's is `{spec.precision}`"
    if spec.fsdp.wrap == "naive" and spec.fsdp.prefetch:
        yield "fsdp.prefetch", "means nothing to wrap `naive`, whose one unit has no next one"
    if spec.tf32 and spec.precision != "fp32":
        yield "tf32", f"is for precision `fp32`; this run's is `{spec.precision}`"
    if spec.lora_rank is None and spec.lora != type(spec.lora)():
        yield "lora", "means nothing without `lora_rank`"
    if spec.lora.merge and not spec.checkpoint.export:
        yield "lora.merge", "is how the export is written, and `checkpoint.export` is false"
    if spec.strategy not in SHARDED and spec.fsdp != type(spec.fsdp)():
        yield "fsdp", f"means nothing to strategy `{spec.strategy}`"
    if spec.strategy != "ddp" and spec.ddp != type(spec.ddp)():
        yield "ddp", f"means nothing to strategy `{spec.strategy}`"
    yield from _unused_evaluation(spec)


def _unused_evaluation(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    held_out, way_out = _held_out(spec)
    if not held_out and spec.evaluation.every_steps is not None:
        yield "evaluation.every_steps", f"nothing is held out for evaluation; {way_out}"
    best, known = spec.checkpoint.keep_best, EVALUATION_METRICS.get(spec.task)
    if best is None or known is None:
        return
    if not held_out:
        yield "checkpoint.keep_best", f"nothing is held out for evaluation; {way_out}"
    elif best.metric not in (*known, "train/loss"):
        yield "checkpoint.keep_best.metric", f"task `{spec.task}` has no `{best.metric}`; it has {', '.join(known)}"


def _held_out(spec: TrainingSpec) -> tuple[bool, str]:
    """Whether there is something to evaluate on, and how there would be."""
    match spec.data:
        case BuiltinData() as data:
            return data.eval_fraction > 0, "set `data.eval_fraction` above 0"
        case JsonlData() as data:
            return data.eval_path is not None, "give `data.eval_path`"
    return True, ""


def _changed(section: BaseModel, field: str) -> bool:
    return bool(getattr(section, field) != type(section).model_fields[field].default)
