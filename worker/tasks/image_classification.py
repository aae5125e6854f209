"""Classification of handwritten digits with a small convolutional network, and of images with a Hugging Face model."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import BuiltinData, ConvnetModel, HfModel
from worker.data.builtin import load_digits
from worker.data.examples import Examples, Tensors
from worker.data.text_examples import DIRECT, DataAccess
from worker.deferred.recording import CannotDeferError
from worker.tasks.adapter_classes import check_classes, known_classes
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


class HfImageClassification(ImageClassification):
    """Image classification that also measures accuracy in training."""

    def __init__(
        self, build: Callable[[], nn.Module], examples: Examples, classes: tuple[str, ...], loss: Loss = PLAIN
    ) -> None:
        super().__init__(build, examples, loss)
        self.classes = classes

    def deferred_model(self) -> None:
        """Raise CannotDeferError: transformers draws the weights of a new head while it loads the others."""
        raise CannotDeferError("the head for the classes may be new")

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Return the summed loss, and the number of images whose class is found."""
        images, labels = batch
        logits = model(images)
        hits = (logits.detach().argmax(dim=-1) == labels).sum()
        return summed_cross_entropy(logits, labels, self._loss), {"accuracy": hits}


def build_image_classification(
    model: HfModel,
    data: ImageFiles,
    seed: int,
    access: DataAccess = DIRECT,
    loss: Loss = PLAIN,
    adapter: str | None = None,
) -> HfImageClassification:
    """Return the task of a Hugging Face model on images with classes. `adapter`: the folder of a continued adapter."""
    from worker.tasks.hf_classifier import class_names, load_image_classifier
    from worker.tasks.hf_model import HfFolder

    folder = HfFolder(model.path, access.roots)
    processor = folder.image_processor
    # These imports need Pillow; the folder has explained its absence.
    from worker.data.image_examples import load_images
    from worker.data.image_pixels import pixel_format

    format_ = pixel_format(processor, f"model.path: {folder.path}", cropped=data.crop is not None)
    known = known_classes(class_names(folder.config), adapter, access.roots)
    files = load_images(data, format_, seed, known, access)
    examples = files.examples
    check_classes(adapter, known, examples.classes)
    shape = (format_.channels, format_.height, format_.width)
    task = HfImageClassification(
        lambda: load_image_classifier(folder, examples.classes, shape), examples, examples.classes, loss
    )
    task.notices = files.notices
    return task
