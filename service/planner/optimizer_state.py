"""The memory of an optimizer, by the rules of `worker/engine/optim.py`. Pure functions."""

from math import prod

from service.planner.model_structure import ModelStructure, Parameter
from service.planner.trainable_parameters import TrainableModel
from trainyard.contract.spec.optimization import Optimizer
from trainyard.contract.spec.training_spec import TrainingSpec

LION_CHUNK = 2**26
"""Elements that Lion updates at once. The constant of `worker/engine/optimizers/lion.py`; a test compares the two."""


def stored_elements(spec: TrainingSpec, trainable: TrainableModel) -> int:
    """Return the number of values that a run stores beside the weights: optimizer state, and their average."""
    average = trainable.trained_count if spec.ema else 0
    return state_elements(spec.optimizer, trainable) + average


def state_elements(optimizer: Optimizer, trainable: TrainableModel) -> int:
    """Return the number of values that the optimizer stores for the whole model."""
    return sum(_stored(optimizer, trainable.structure, parameter) for parameter in _trained(trainable))


def tensors_per_parameter(optimizer: Optimizer) -> int:
    """Return the most tensors that the optimizer stores for a parameter, without the count of its steps."""
    match optimizer.name:
        case "sgd":
            return int(optimizer.momentum > 0)
        case "lion":
            return 1
    return 2


def update_bytes(optimizer: Optimizer, trainable: TrainableModel, *, shards: int) -> int:
    """Return the memory of temporary values in an update, on one rank."""
    sizes = [parameter.size for parameter in _trained(trainable)]
    match optimizer.name:
        case "lion":
            return 4 * min(LION_CHUNK, sum(sizes) // shards) if sizes else 0
        case "adafactor":
            return 2 * 4 * max(sizes, default=0) // shards
        case "muon":
            # The gathered update, and three values of its size in the iteration.
            matrices = [p.size for p in _trained(trainable) if _is_hidden_matrix(trainable.structure, p)]
            return 4 * 4 * max(matrices, default=0)
    return 0


def _trained(trainable: TrainableModel) -> list[Parameter]:
    return [parameter for parameter in trainable.structure.parameters if parameter.name in trainable.trained]


def _stored(optimizer: Optimizer, structure: ModelStructure, parameter: Parameter) -> int:
    match optimizer.name:
        case "adafactor" if len(parameter.shape) > 1:
            *rows, columns = parameter.shape
            return prod(rows) + prod(rows[:-1]) * columns
        case "adafactor":
            return parameter.size
        case "muon" if _is_hidden_matrix(structure, parameter):
            return parameter.size
    return tensors_per_parameter(optimizer) * parameter.size


def _is_hidden_matrix(structure: ModelStructure, parameter: Parameter) -> bool:
    if parameter.kind in ("embedding", "norm") or parameter.name.endswith("bias"):
        return False
    inside = structure.output is not None and parameter.name.startswith(f"{structure.output}.")
    return len(parameter.shape) in (2, 4) and not inside
