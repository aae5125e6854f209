"""Returns the task of a spec. The module of a task is imported only if the spec needs it."""

from collections.abc import Callable

from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, HfModel, MlpModel
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.text_examples import DIRECT, DataAccess
from worker.tasks.base import Task

ROW_MULTIPLE = 128
"""Tokens to a multiple of which rows are padded on GPUs."""


def select_task(spec: TrainingSpec, access: DataAccess = DIRECT) -> Task:
    """Return the task with its data loaded.

    Args:
        access: How data is read. Its roots do not limit the code of task `custom`.

    Raises:
        RefusedError: There is no task for the spec's model and data, or they cannot be loaded.
    """
    build = BUILDERS.get(spec.task)
    task = build(spec, access) if build else None
    if task is None:
        raise RefusedError(f"this worker cannot train task `{spec.task}` with that model and data")
    return task


def _row_multiple(spec: TrainingSpec) -> int:
    return ROW_MULTIPLE if spec.backend == "nccl" else 1


def _causal_lm(spec: TrainingSpec, access: DataAccess) -> Task | None:
    multiple = _row_multiple(spec)
    if spec.objective != "sft" and isinstance(spec.data, TextData | BuiltinData):
        from worker.tasks.preference import build_preference_task

        return build_preference_task(spec, spec.data, access, row_multiple=multiple)
    from worker.tasks import causal_lm

    match spec.model, spec.data:
        case (GptModel() | LlamaModel()) as model, BuiltinData(name="stdlib") as data:
            return causal_lm.build_builtin_on_stdlib(model, data, spec.loss)
        case (GptModel() | LlamaModel()) as model, TextData() as data:
            return causal_lm.build_builtin_on_text(model, data, access, spec.loss, row_multiple=multiple)
        case HfModel() as model, TextData() as data:
            return causal_lm.build_hf_on_text(model, data, access, spec.loss, row_multiple=multiple)
    return None


def _sequence_classification(spec: TrainingSpec, access: DataAccess) -> Task | None:
    if not isinstance(spec.model, HfModel) or not isinstance(spec.data, TextData):
        return None
    from worker.tasks.sequence_classification import build_classification

    return build_classification(spec.model, spec.data, access, spec.loss, spec.lora.adapter)


def _text_embedding(spec: TrainingSpec, access: DataAccess) -> Task | None:
    if not isinstance(spec.model, HfModel) or not isinstance(spec.data, TextData):
        return None
    from worker.tasks.text_embedding import build_embedding

    return build_embedding(spec.model, spec.data, spec.embedding, spec.seed, access)


def _image_classification(spec: TrainingSpec, access: DataAccess) -> Task | None:
    match spec.model, spec.data:
        case ConvnetModel() as model, BuiltinData(name="digits") as data:
            from worker.tasks.image_classification import build_digits

            return build_digits(model, data, spec.loss)
        case HfModel() as model, ImageFiles() as data:
            from worker.tasks.image_classification import build_image_classification

            return build_image_classification(model, data, spec.seed, access, spec.loss, spec.lora.adapter)
    return None


def _regression(spec: TrainingSpec, access: DataAccess) -> Task | None:
    match spec.model, spec.data:
        case MlpModel() as model, BuiltinData(name="parity") as data:
            from worker.tasks.regression import Regression

            return Regression(model, data, spec.seed)
    return None


def _custom(spec: TrainingSpec, access: DataAccess) -> Task:
    from worker.tasks.custom import load_custom

    return load_custom(spec)


BUILDERS: dict[str, Callable[[TrainingSpec, DataAccess], Task | None]] = {
    "causal_lm": _causal_lm,
    "sequence_classification": _sequence_classification,
    "text_embedding": _text_embedding,
    "image_classification": _image_classification,
    "regression": _regression,
    "custom": _custom,
}
"""How each task of the loop is built; None: it has no such model and data."""
