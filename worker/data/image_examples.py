"""Images with classes, decoded as they are used."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.spec.image_data import ImageFiles
from worker.core.errors import RefusedError
from worker.core.processes import usable_processors
from worker.data.examples import Examples, Tensors
from worker.data.image_decoding import decode_image
from worker.data.image_pixels import Augmentation, PixelFormat
from worker.data.image_store import StoredImages, store_images
from worker.data.labelled_texts import by_number
from worker.data.notices import Notice
from worker.data.row_layout import held_out_examples
from worker.data.sampler import EpochOrder, Indices, NumberedByEpoch, WholePass, generator
from worker.data.text_examples import DIRECT, DataAccess

MAX_CLASSES = 50_000
_MAX_THREADS = 8


@dataclass(frozen=True)
class ImageExamples(Examples):
    """Images of one or two fields of the spec, and their classes. A training example differs from epoch to epoch if it
    is augmented; see `order_by_epoch`."""

    stored: tuple[StoredImages, ...]
    records: NDArray[np.int64]
    """The image of each example, counted through `stored`: shape (examples,)."""
    labels: NDArray[np.int64]
    """The class of each example: shape (examples,)."""
    classes: tuple[str, ...]
    """The names of the classes, by their numbers."""
    format: PixelFormat
    augmentation: Augmentation | None
    seed: int
    shuffle: bool

    def order_by_epoch(self) -> EpochOrder | None:
        """Return the order of the examples of each epoch, in which `n * train + i` is example i in epoch n; None for
        the plain one, if no example differs from epoch to epoch."""
        if self.augmentation is None:
            return None
        return NumberedByEpoch(WholePass(self.train, seed=self.seed, shuffle=self.shuffle))

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return images (fp32, (n, channels, height, width)) and classes (int64, (n,))."""
        epochs, numbers = np.divmod(indices, self.train)
        images = [self._training_image(int(index), int(epoch)) for index, epoch in zip(numbers, epochs, strict=True)]
        return self._batch(images, numbers, device)

    def held_out_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return held-out examples, counted from 0 at the first one; their images are not augmented."""
        numbers = indices + self.train
        with ThreadPoolExecutor(min(usable_processors(), _MAX_THREADS)) as threads:
            images = list(threads.map(lambda number: self.format.pixels(self._decoded(int(number))), numbers))
        return self._batch(images, numbers, device)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return what the digest of the training examples is taken of: the SHA-256 of each image, and its class."""
        first = self.stored[0].digests[self.records[: self.train]]
        names = np.frombuffer("\0".join(self.classes).encode(), dtype=np.uint8)
        return [first, self.labels[: self.train], names]

    def _training_image(self, index: int, epoch: int) -> torch.Tensor:
        image = self._decoded(index)
        if self.augmentation is None:
            return self.format.pixels(image)
        return self.format.training_pixels(image, self.augmentation, generator(self.seed, epoch, index))

    def _decoded(self, example: int) -> Any:
        record = int(self.records[example])
        for images in self.stored:
            if record < len(images):
                start = int(images.ends[record - 1]) if record else 0
                return decode_image(images.encoded[start : images.ends[record]].tobytes())
            record -= len(images)
        raise AssertionError("the numbers of records end with the last image")

    def _batch(self, images: Sequence[torch.Tensor], numbers: Indices, device: torch.device) -> Tensors:
        labels = torch.from_numpy(self.labels[numbers])
        return torch.stack(list(images)).to(device, non_blocking=True), labels.to(device, non_blocking=True)


@dataclass(frozen=True)
class LabelledImages:
    """What the files of a section hold."""

    examples: ImageExamples
    notices: list[Notice]


def load_images(
    data: ImageFiles, format_: PixelFormat, seed: int, known: Sequence[str] = (), access: DataAccess = DIRECT
) -> LabelledImages:
    """Return the images of a section.

    Args:
        known: Names of the classes that the model has. They are kept if the training images have no other.

    Raises:
        RefusedError: A file or an image is invalid, or an evaluation has a class that the training images lack.
    """
    stored, notices = store_images(data, access)
    present = set(stored[0].names)
    classes = tuple(known) if present <= set(known) else tuple(sorted(present, key=by_number))
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise RefusedError(f"data.path: the images have {len(classes)} classes, and from 2 to {MAX_CLASSES} can be")
    numbers = {name: number for number, name in enumerate(classes)}
    if len(stored) > 1 and set(stored[1].names) - numbers.keys():
        # The label is of the user's data, and is not quoted.
        raise RefusedError("data.eval_path: has a label that no training image has")
    labels = [np.array([numbers[name] for name in images.names], dtype=np.int64)[images.labels] for images in stored]
    count = len(stored[0])
    chosen = held_out_examples(count, data.eval_fraction)
    held_out = np.concatenate([np.flatnonzero(chosen), np.arange(count, sum(map(len, stored)))])
    records = np.concatenate([np.flatnonzero(~chosen), held_out]).astype(np.int64)
    if len(held_out) == len(records):
        raise RefusedError("data.eval_fraction: holds every image out", "Use a smaller fraction.")
    examples = ImageExamples(
        (),
        len(records) - len(held_out),
        len(held_out),
        stored=tuple(stored),
        records=records,
        labels=np.concatenate(labels)[records],
        classes=classes,
        format=format_,
        augmentation=Augmentation(data.crop, data.flip) if data.is_augmented else None,
        seed=seed,
        shuffle=data.shuffle,
    )
    return LabelledImages(examples, notices)
