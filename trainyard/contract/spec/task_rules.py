"""Rules of the tasks that read images, and of those that read texts without learning to write them. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.tasks import TASKS, quoted, tasks_with
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, HfModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec

_FORMATS = {kind.name: kind.text_format for kind in TASKS.values() if kind.text_format}
"""The format of the examples of each task, which no other task reads."""


def unsupported_text_tasks(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a task that reads texts and does not write them, or of their formats for another task."""
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


def unsupported_images(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Yield the problems of a classification of images, or of images for a task that reads none."""
    task = spec.task
    if not spec.task_kind.reads_images:
        if isinstance(spec.data, ImageFiles):
            users = quoted(tasks_with(lambda kind: kind.reads_images))
            yield "data.source", f"`images` is for task {users}, and `task` is `{spec.task}`; use another source"
        return
    model, data = spec.model, spec.data
    if isinstance(model, HfModel):
        if not isinstance(data, ImageFiles):
            used = f"`{data.source}`" if data is not None else "no data"
            yield "data.source", f"{used} does not fit a model of source `hf` of task `{task}`; use source `images`"
        if spec.trainable is not None:
            advice = "remove it to train the whole model, or set `lora_rank`"
            yield "trainable", f"is not for models of source `hf` of task `{task}`; {advice}"
        return
    if not isinstance(model, ConvnetModel):
        name = getattr(model, "name", "")
        yield "model.name", f"`{name}` does not fit task `{task}`; use `convnet`, or a model of source `hf`"
    if isinstance(data, ImageFiles):
        if isinstance(model, ConvnetModel):
            yield "model.name", "`convnet` is for the data set `digits`; use a model of source `hf`"
    elif not isinstance(data, BuiltinData):
        source = getattr(data, "source", "")
        yield (
            "data.source",
            f"`{source}` does not fit task `{task}`; use `images` with a model of source `hf`, or `builtin` and name "
            "`digits`",
        )
    elif data.name != "digits":
        yield "data.name", f"`{data.name}` does not fit task `{task}`; use `digits`"
