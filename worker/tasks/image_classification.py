"""Classification of images, and of handwritten digits with a small convolutional network."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel
from worker.data.builtin import load_digits
from worker.data.examples import Examples, Tensors
from worker.tasks.base import Task
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy


class Convnet(nn.Module):
    """Three convolutions and a linear head. No batch normalisation, so that the loss does not depend on the layout."""

    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * channels * 4, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, classes) of images (fp32, (batch, 1, 8, 8))."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


class ImageClassification(Task):
    """Cross entropy in nats, summed over images; accuracy on held-out images."""

    def __init__(self, build: Callable[[], nn.Module], examples: Examples, loss: Loss = PLAIN) -> None:
        """
        Args:
            build: Returns a new model, which maps images to logits (n, classes).
            examples: Images and their classes.
            loss: The terms of the training loss.
        """
        self._build = build
        self._loss = loss
        self.examples = examples

    def build_model(self) -> nn.Module:
        return self._build()

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        images, labels = batch
        return summed_cross_entropy(model(images), labels, self._loss)

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        images, labels = batch
        logits = model(images).float()
        return {
            "eval/loss": summed_cross_entropy(logits, labels),
            "eval/accuracy": (logits.argmax(dim=1) == labels).sum(),
        }


def build_digits(model: ConvnetModel, data: BuiltinData, loss: Loss = PLAIN) -> ImageClassification:
    """Return the task of the convolutional network on scikit-learn's digits."""
    images, labels, train = load_digits(data.eval_fraction)
    examples = Examples((images, labels), train=train, held_out=len(images) - train)
    return ImageClassification(lambda: Convnet(model.channels, model.classes, model.dropout), examples, loss)
