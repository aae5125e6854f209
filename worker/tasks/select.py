"""Returns the task of a spec. The module of a task is imported only if the spec needs it."""

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
    if spec.task == "custom":
        from worker.tasks.custom import load_custom

        return load_custom(spec)
    multiple = ROW_MULTIPLE if spec.backend == "nccl" else 1
    if spec.objective != "sft" and isinstance(spec.data, TextData | BuiltinData):
        from worker.tasks.preference import build_preference_task

        return build_preference_task(spec, spec.data, access, row_multiple=multiple)
    match spec.model, spec.data:
        case (GptModel() | LlamaModel()) as model, BuiltinData(name="stdlib") as data:
            from worker.tasks.causal_lm import build_builtin_on_stdlib

            return build_builtin_on_stdlib(model, data, spec.loss)
        case (GptModel() | LlamaModel()) as model, TextData() as data:
            from worker.tasks.causal_lm import build_builtin_on_text

            return build_builtin_on_text(model, data, access, spec.loss, row_multiple=multiple)
        case HfModel() as model, TextData() as data:
            return _build_hf_on_text(spec, model, data, access, multiple)
        case ConvnetModel() as model, BuiltinData(name="digits") as data:
            from worker.tasks.image_classification import build_digits

            return build_digits(model, data, spec.loss)
        case HfModel() as model, ImageFiles() as data:
            from worker.tasks.hf_image_classification import build_image_classification

            return build_image_classification(model, data, spec.seed, access, spec.loss, spec.lora.adapter)
        case MlpModel() as model, BuiltinData(name="parity") as data:
            from worker.tasks.regression import Regression

            return Regression(model, data, spec.seed)
    raise RefusedError(f"this worker cannot train task `{spec.task}` with that model and data")


def _build_hf_on_text(spec: TrainingSpec, model: HfModel, data: TextData, access: DataAccess, multiple: int) -> Task:
    """Return the task of a Hugging Face model that reads texts. `multiple`: see ROW_MULTIPLE."""
    if spec.task == "sequence_classification":
        from worker.tasks.sequence_classification import build_classification

        return build_classification(model, data, access, spec.loss, spec.lora.adapter)
    if spec.task == "text_embedding":
        from worker.tasks.text_embedding import build_embedding

        return build_embedding(model, data, spec.embedding, spec.seed, access)
    from worker.tasks.causal_lm import build_hf_on_text

    return build_hf_on_text(model, data, access, spec.loss, row_multiple=multiple)
