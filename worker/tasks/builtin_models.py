"""Builds the builtin models. The module of a model is imported only if it is needed."""

from torch import nn

from trainyard.contract.spec.decoders import BuiltinDecoder, GptModel, LlamaModel
from trainyard.contract.spec.sections import ConvnetModel, MlpModel


def build_builtin(model: BuiltinDecoder | ConvnetModel | MlpModel) -> nn.Module:
    """Return a new model, initialised from torch's global generator."""
    match model:
        case GptModel():
            from worker.tasks.gpt import Gpt

            return Gpt(model)
        case LlamaModel():
            from worker.tasks.llama import Llama

            return Llama(model)
        case ConvnetModel():
            from worker.tasks.image_classification import Convnet

            return Convnet(model.channels, model.classes, model.dropout)
        case MlpModel():
            from worker.tasks.regression import mlp

            return mlp(model.sizes, model.activation)
