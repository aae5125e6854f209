"""Builds the base model of adapters again, without the run that has trained them."""

from collections.abc import Sequence

from torch import nn

from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.random_state import seed_generators
from worker.tasks.builtin_models import build_builtin


def build_base(spec: TrainingSpec, classes: Sequence[str] = ()) -> nn.Module:
    """Return the base model with its weights. The head of a classifier, which is a part of the adapters, has any.

    Args:
        classes: The names of the outputs of a model that classifies.
    """
    assert spec.model is not None
    seed_generators(spec.seed)
    if not isinstance(spec.model, HfModel):
        return build_builtin(spec.model)
    from worker.data.parsed_records import padding_of
    from worker.tasks.hf_classifier import load_image_classifier, load_text_classifier
    from worker.tasks.hf_embedding import load_embedding
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(spec.model.path)
    task = spec.task_kind
    if task.makes_vectors:
        return load_embedding(folder, spec.embedding.pooling)
    if task.classifies and task.reads_texts:
        return load_text_classifier(folder, classes, padding_of(folder.tokenizer))
    if task.classifies:
        return load_image_classifier(folder, classes)
    return folder.load(packed=False)
