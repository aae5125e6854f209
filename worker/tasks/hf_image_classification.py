"""Classification of images with a Hugging Face model and a head for the classes of the data."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.optimization import Loss
from trainyard.contract.spec.sections import HfModel
from worker.data.examples import Examples, Tensors
from worker.data.text_examples import DIRECT, DataAccess
from worker.deferred.recording import CannotDeferError
from worker.tasks.adapter_classes import check_classes, known_classes
from worker.tasks.cross_entropy import PLAIN, summed_cross_entropy
from worker.tasks.image_classification import ImageClassification


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
