"""Numbers of a builtin model that cannot stand together, known before any node is asked for. Pure."""

from collections.abc import Iterator

from trainyard.contract.problems import Problem
from trainyard.contract.sections import GptModel, JsonlData, MlpModel
from trainyard.contract.spec import TrainingSpec

BYTES = 256


def size_problems(spec: TrainingSpec) -> list[Problem]:
    """Each with the field to change."""
    found = [*_of_gpt(spec, spec.model)] if isinstance(spec.model, GptModel) else []
    found += _of_adapters(spec)
    return [Problem(param=param, message=message) for param, message in found]


def _of_gpt(spec: TrainingSpec, model: GptModel) -> Iterator[tuple[str, str]]:
    if model.vocab < BYTES:
        yield "model.vocab", f"is {model.vocab}, but the data are bytes; set it to {BYTES} or more"
    if model.width % model.heads:
        yield "model.width", f"is {model.width}, not a multiple of the {model.heads} of `model.heads`"
    length = spec.data.max_length if isinstance(spec.data, JsonlData) else None
    if length is not None and length > model.context:
        yield "data.max_length", f"is {length}, longer than the {model.context} tokens of `model.context`"


def _of_adapters(spec: TrainingSpec) -> Iterator[tuple[str, str]]:
    """What `auto` adapts in our own models; other targets are known to the worker alone."""
    if spec.lora_rank is None or spec.lora.targets != "auto":
        return
    match spec.model:
        case GptModel(width=width):
            smallest = width
        case MlpModel(sizes=sizes) if len(sizes) > 2:
            smallest = min(sizes[:-1])
        case _:
            return
    if spec.lora_rank > smallest:
        yield "lora_rank", f"is {spec.lora_rank}, larger than the smallest side of its targets; take {smallest} or less"
