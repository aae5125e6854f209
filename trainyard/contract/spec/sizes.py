"""Numbers of a builtin model that cannot stand together, known before any node is asked for. Pure."""

from collections.abc import Iterator

from trainyard.contract.problems import Problem
from trainyard.contract.spec.sections import GptModel, JsonlData
from trainyard.contract.spec.training_spec import TrainingSpec

BYTES = 256


def size_problems(spec: TrainingSpec) -> list[Problem]:
    """Each with the field to change."""
    found = [*_of_gpt(spec, spec.model)] if isinstance(spec.model, GptModel) else []
    return [Problem(param=param, message=message) for param, message in found]


def _of_gpt(spec: TrainingSpec, model: GptModel) -> Iterator[tuple[str, str]]:
    if model.vocab < BYTES:
        yield "model.vocab", f"is {model.vocab}, but the data are bytes; set it to {BYTES} or more"
    if model.width % model.heads:
        yield "model.width", f"is {model.width}, not a multiple of the {model.heads} of `model.heads`"
    length = spec.data.max_length if isinstance(spec.data, JsonlData) else None
    if length is not None and length > model.context:
        yield "data.max_length", f"is {length}, longer than the {model.context} tokens of `model.context`"
