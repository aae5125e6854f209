"""The memory of an optimizer, by the rules of `worker/engine/optim.py`. Pure functions."""

from math import prod

from service.planner.model_structure import Parameter
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
    match optimizer.name:
        case "adafactor":
            return sum(map(_rows_and_columns, trainable.trained_parameters))
        case "muon":
            return 2 * trainable.trained_count - sum(parameter.size for parameter in trainable.hidden_matrices)
    return tensors_per_parameter(optimizer) * trainable.trained_count


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
    match optimizer.name:
        case "lion":
            return 4 * min(LION_CHUNK, trainable.trained_count // shards)
        case "adafactor":
            return 2 * 4 * trainable.largest_trained // shards
        case "muon":
            # The gathered update, and three values of its size in the iteration.
            return 4 * 4 * max((matrix.size for matrix in trainable.hidden_matrices), default=0)
    return 0


def _rows_and_columns(parameter: Parameter) -> int:
    if len(parameter.shape) < 2:
        return parameter.size
    *rows, columns = parameter.shape
    return prod(rows) + prod(rows[:-1]) * columns
