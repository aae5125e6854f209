"""What the builtin models that read no text expect as their input."""

from trainyard.contract.model_input import DIGITS, ImageInput, VectorInput
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, MlpModel
from trainyard.contract.spec.training_spec import TrainingSpec


def input_of(spec: TrainingSpec) -> ImageInput | VectorInput | None:
    """Return the input of a spec's model; None if it reads text, or if the job's own code defines it."""
    match spec.model, spec.data:
        case ConvnetModel(), BuiltinData(name="digits"):
            return DIGITS
        case MlpModel(sizes=sizes), _:
            return VectorInput(size=sizes[0], outputs=sizes[-1])
    return None
