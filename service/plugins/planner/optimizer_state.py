"""The memory of an optimizer, by the rules of `worker/engine/optim.py`. Pure functions."""

from math import prod

from service.plugins.planner.model_structure import Parameter
from service.plugins.planner.trainable_parameters import TrainableModel
from trainyard.contract.spec.optimization import Optimizer
from trainyard.contract.spec.training_spec import TrainingSpec

BLOCK, SHORTEST_ROW = 256, 64
"""Values that share a scale in int8, and values of a row that is stored so. The constants of
`worker/engine/optimizers/encodings.py`; a test compares them."""
BUCKET = 2**24
"""Elements that are updated at once if values are converted. The constant of `worker/engine/optimizers/bucketed.py`;
a test compares the two."""
LION_CHUNK = 2**26
"""Elements that Lion updates at once. The constant of `worker/engine/optimizers/lion.py`; a test compares the two."""


def stored_bytes(spec: TrainingSpec, trainable: TrainableModel) -> int:
    """Return the bytes that a run stores beside the weights: optimizer state, and their average."""
    average = 4 * trainable.trained_count if spec.ema else 0
    return state_bytes(spec.optimizer, trainable) + average


def state_bytes(optimizer: Optimizer, trainable: TrainableModel) -> int:
    """Return the bytes that the optimizer stores for the whole model."""
    match optimizer.state_dtype:
        case "bf16":
            return 2 * state_elements(optimizer, trainable)
        case "int8":
            return tensors_per_parameter(optimizer) * sum(map(_quantized_bytes, trainable.trained_parameters))
    return 4 * state_elements(optimizer, trainable)


def _quantized_bytes(parameter: Parameter) -> int:
    """Return the bytes of a moment of a parameter in int8, with its scales."""
    rows, width = parameter.shape[0] if parameter.shape else 1, prod(parameter.shape[1:])
    if len(parameter.shape) < 2 or width < SHORTEST_ROW:
        return 4 * parameter.size
    return parameter.size + 4 * rows * -(-width // BLOCK)


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


def update_bytes(spec: TrainingSpec, trainable: TrainableModel, *, shards: int) -> int:
    """Return the memory of temporary values in an update, on one rank."""
    optimizer = spec.optimizer
    if spec.param_dtype != "fp32" or optimizer.state_dtype != "fp32":
        return _conversion_bytes(spec, trainable, shards)
    match optimizer.name:
        case "lion":
            return 4 * min(LION_CHUNK, trainable.trained_count // shards)
        case "adafactor":
            return 2 * 4 * trainable.largest_trained // shards
        case "muon":
            # The gathered update, and three values of its size in the iteration.
            return 4 * 4 * max((matrix.size for matrix in trainable.hidden_matrices), default=0)
    return 0


def _conversion_bytes(spec: TrainingSpec, trainable: TrainableModel, shards: int) -> int:
    """Return the bytes of a bucket in fp32, and of temporary values in its update or in encoding a parameter."""
    counts = trainable.trained_count, trainable.largest_trained
    bucket, largest = (min(BUCKET, -(-count // shards)) for count in counts)
    moments = tensors_per_parameter(spec.optimizer) if spec.optimizer.state_dtype != "fp32" else 0
    copies = 4 * ((spec.param_dtype == "bf16") + (spec.grad_dtype == "bf16") + moments)
    inner = 4 * bucket if spec.optimizer.name == "lion" else 0
    return copies * bucket + max(inner, _ENCODING_BYTES[spec.optimizer.state_dtype] * largest)


_ENCODING_BYTES = {"fp32": 2, "bf16": 19, "int8": 33}
"""Temporary bytes for each element while the values of a parameter are stored; measured."""


def _rows_and_columns(parameter: Parameter) -> int:
    if len(parameter.shape) < 2:
        return parameter.size
    *rows, columns = parameter.shape
    return prod(rows) + prod(rows[:-1]) * columns
