"""Rules of the tasks that train Hugging Face models on texts but not to write them. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.tasks import TASKS, quoted
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec

_FORMATS = {kind.name: kind.text_format for kind in TASKS.values() if kind.text_format}
"""The format of the examples of each task, which no other task reads."""


def unsupported_text_tasks(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of these tasks, and of formats that only they can read."""
    yield from _other_formats(spec)
    task, expected, data = spec.task, spec.task_kind.text_format, spec.data
    if expected is None:
        return
    if not isinstance(spec.model, HfModel):
        yield "model.source", f"`builtin` does not fit task `{task}`; use `hf`"
    if spec.trainable is not None:
        yield "trainable", f"is not for task `{task}`; remove it to train the whole model, or set `lora_rank`"
    if not isinstance(data, TextData):
        yield (
            "data.source",
            f"`builtin` has no {spec.task_kind.examples}, which task `{task}` needs; use source `jsonl`",
        )
        return
    for section, source in data.described_sources.items():
        if source.format not in ("auto", *_FORMATS.values()):
            yield f"{section}.format", f"is `{source.format}`, and task `{task}` needs `{expected}`"


def _other_formats(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the formats that are for another task."""
    for section, source in spec.data.described_sources.items() if isinstance(spec.data, TextData) else ():
        users = [task for task, format in _FORMATS.items() if format == source.format]
        if users and spec.task not in users:
            yield f"{section}.format", f"`{source.format}` is for task {quoted(users)}; use another format"
