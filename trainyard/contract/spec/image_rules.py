"""Rules of task `image_classification`, and of images as data. Pure functions."""

from collections.abc import Iterator

from trainyard.contract.kinds.tasks import quoted, tasks_with
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, HfModel
from trainyard.contract.spec.training_spec import TrainingSpec


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
            yield (
                "model.name",
                "`convnet` is for the data set `digits`; use a model of source `hf`",
            )
    elif not isinstance(data, BuiltinData):
        source = getattr(data, "source", "")
        yield (
            "data.source",
            f"`{source}` does not fit task `{task}`; use `images` with a model of source `hf`, or `builtin` and name "
            "`digits`",
        )
    elif data.name != "digits":
        yield "data.name", f"`{data.name}` does not fit task `{task}`; use `digits`"
