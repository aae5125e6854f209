"""Rules about objectives, samples and properties of adapters. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.tasks import quoted, tasks_with
from trainyard.contract.spec.objectives import DEFAULT_BETA, PAIRED, Objective
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import BuiltinData, HfModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.text_sources import PAIR_FORMATS, PREFERENCE_FORMATS
from trainyard.contract.spec.training_spec import TrainingSpec

_USERS: dict[str, tuple[Objective, ...]] = {
    "loss_type": ("dpo",),
    "label_smoothing": ("dpo",),
    "simpo_gamma": ("simpo",),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
}
"""The objectives that use a field of `preference`; all use `beta`."""
_SUMS = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
)


def preference_beta(spec: TrainingSpec) -> float:
    """Return `preference.beta`, or its default for the objective."""
    return DEFAULT_BETA[spec.objective] if spec.preference.beta is None else spec.preference.beta


def objective_metrics(spec: TrainingSpec) -> tuple[str, ...]:
    """Return the names of the metrics of an evaluation that the objective adds."""
    if not spec.task_kind.writes_texts:
        return ()
    return ("eval/mean_token_accuracy",) if spec.objective == "sft" else tuple(f"eval/{name}" for name in _SUMS)


def unsupported_objectives(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of an objective, of samples or of adapters that cannot be used as the spec has them."""
    if spec.objective != "sft" and spec.task_kind.writes_texts:
        yield from _preferences(spec)
    else:
        for field, format in _formats(spec):
            if format in PREFERENCE_FORMATS:
                users = "`dpo`, `orpo` and `simpo`" if format in PAIR_FORMATS else "`kto`"
                yield field, f"`{format}` is for the objectives {users}; set `objective`, or use another format"
    samples = spec.evaluation.samples
    if samples is not None and samples.chat and not isinstance(spec.model, HfModel):
        yield "evaluation.samples.chat", "needs a chat template, which only models of source `hf` have; use `false`"
    if spec.lora_rank is None:
        return
    if spec.lora.dora and spec.lora.base_dtype in ("int8", "nf4"):
        yield (
            "lora.dora",
            f"needs the norms of the base, which is held in `{spec.lora.base_dtype}`; use `bf16` or `fp32`",
        )
    if spec.lora.dora and spec.strategy_kind.is_sharded and spec.fsdp.wrap == "size":
        yield "lora.dora", "cannot be combined with wrap `size`, which may shard a layer without its base; use `layer`"
    if spec.lora.modules_to_save and spec.lora.base_dtype != "fp32":
        yield "lora.modules_to_save", "cannot be combined with a `lora.base_dtype` other than `fp32`"


def _preferences(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    objective, data = spec.objective, spec.data
    if not spec.strategy_kind.supports_preferences:
        yield "strategy", f"`{spec.strategy}` divides pairs; with objective `{objective}` use `ddp`"
    if isinstance(data, BuiltinData) and objective not in PAIRED:
        yield "data.name", f"`{data.name}` has pairs only, and objective `{objective}` needs labels; use source `jsonl`"
    known = PAIR_FORMATS if objective in PAIRED else PREFERENCE_FORMATS - PAIR_FORMATS
    for field, format in _formats(spec):
        if format not in ("auto", *known):
            names = " or ".join(f"`{name}`" for name in sorted(known, reverse=True))
            yield field, f"is `{format}`, and objective `{objective}` needs {names}"
    if data is not None and objective == "kto" and spec.batch.size < 2:
        yield "batch.size", "is 1, and `kto` compares each answer with the mean over the batch; use 2 or more"


def _formats(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the formats of the data's sources with the fields that name them."""
    if isinstance(spec.data, TextData):
        for section, source in spec.data.described_sources.items():
            yield f"{section}.format", source.format


def ineffective_objectives(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields of these sections that are set and have no effect."""
    if spec.lora.adapter is not None and spec.resume_from is not None and spec.resume == "weights":
        yield "lora.adapter", "has no effect with `resume: weights`, whose weights replace it"
    if not spec.task_kind.writes_texts:
        yield from _other_task(spec)
        return
    if spec.objective == "sft":
        if spec.preference != type(spec.preference)():
            yield "preference", "has no effect for objective `sft`; set `objective` to `dpo`, `orpo`, `kto` or `simpo`"
    else:
        yield from _other_objective(spec)


def _other_task(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    users = quoted(tasks_with(lambda kind: kind.writes_texts))
    message = f"has no effect for task `{spec.task}`; it is for {users}"
    for field in ("objective", "preference"):
        if getattr(spec, field) != type(spec).model_fields[field].default:
            yield field, message
    if spec.loss.neftune_alpha:
        yield "loss.neftune_alpha", message
    if spec.evaluation.samples is not None:
        yield "evaluation.samples", message


def _other_objective(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    objective, default = spec.objective, type(spec.preference)()
    for field, users in _USERS.items():
        if objective not in users and getattr(spec.preference, field) != getattr(default, field):
            yield f"preference.{field}", f"has no effect for objective `{objective}`; it is for `{users[0]}`"
    if objective == "dpo" and spec.preference.loss_type != "sigmoid" and spec.preference.label_smoothing:
        yield (
            "preference.label_smoothing",
            f"has no effect for loss type `{spec.preference.loss_type}`; it is for `sigmoid`",
        )
    for field in ("label_smoothing", "z_loss"):
        if getattr(spec.loss, field) != getattr(Loss(), field):
            hint = "; use `preference.label_smoothing`" if (field, objective) == ("label_smoothing", "dpo") else ""
            yield f"loss.{field}", f"has no effect for objective `{objective}`{hint or '; it is for `sft`'}"
