"""Images with classes, decoded on use."""

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
from worker.data.mixture import mixture_of
from worker.data.notices import Notice
from worker.data.row_layout import held_out_examples
from worker.data.sampler import EpochOrder, Indices, NumberedByEpoch, WholePass, generator
from worker.data.text_examples import DIRECT, DataAccess

MAX_CLASSES = 50_000
_MAX_THREADS = 8


@dataclass(frozen=True)
class ImageExamples(Examples):
    """Images of some fields of the spec, and their classes. A training example differs from epoch to epoch if it
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
        """Return the order of the examples of each epoch; None for the plain order, if no example ever differs.

        The number `n * train + i` is example i in epoch n, or in pass n over its source if there are several sources.
        """
        if self.augmentation is None:
            return None
        if self.mixture is not None:
            return self.mixture.order(seed=self.seed, shuffle=self.shuffle, numbered=True)
        return NumberedByEpoch(WholePass(self.train, seed=self.seed, shuffle=self.shuffle))

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return images (fp32, (n, channels, height, width)) and classes (int64, (n,))."""
        epochs, numbers = np.divmod(indices, self.train)
        images = [self._training_image(int(index), int(epoch)) for index, epoch in zip(numbers, epochs, strict=True)]
        return self._batch(images, numbers, device)

    def held_out_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return held-out examples, numbered from 0; their images are not augmented."""
        numbers = indices + self.train
        with ThreadPoolExecutor(min(usable_processors(), _MAX_THREADS)) as threads:
            images = list(threads.map(lambda number: self.format.pixels(self._decoded(int(number))), numbers))
        return self._batch(images, numbers, device)

    def digest_arrays(self) -> list[NDArray[Any]]:
        """Return the SHA-256 and the class of each training image, and the names of the classes."""
        records = self.records[: self.train]
        # Skip sources without a training image, which may be large.
        ends = np.cumsum([len(images) for images in self.stored])
        used = int(np.searchsorted(ends, records.max(), side="right")) + 1
        first = np.concatenate([images.digests for images in self.stored[:used]])[records]
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
    """The examples in the files of a section, with notices about them."""

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
    sources = len(data.training_sources)
    present = {name for images in stored[:sources] for name in images.names}
    classes = tuple(known) if present <= set(known) else tuple(sorted(present, key=by_number))
    if not 2 <= len(classes) <= MAX_CLASSES:
        field = "data.sources" if data.sources else "data.path"
        raise RefusedError(f"{field}: the images have {len(classes)} classes, and from 2 to {MAX_CLASSES} can be")
    numbers = {name: number for number, name in enumerate(classes)}
    if any(set(images.names) - numbers.keys() for images in stored[sources:]):
        # The label is of the user's data, and is not quoted.
        raise RefusedError("data.eval_path: has a label that no training image has")
    labels = [np.array([numbers[name] for name in images.names], dtype=np.int64)[images.labels] for images in stored]
    training, held_out = _divided(data, [len(images) for images in stored], sources)
    records = np.concatenate([*training, *held_out])
    mixture = mixture_of(data, [len(one) for one in training])
    if mixture is not None:
        notices.append(mixture.notice())
    examples = ImageExamples(
        (),
        sum(map(len, training)),
        sum(map(len, held_out)),
        held_out_sets=dict(zip(data.evaluation_sets, map(len, held_out), strict=True)) if data.evaluation_sets else {},
        mixture=mixture,
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


def _divided(data: ImageFiles, counts: Sequence[int], sources: int) -> tuple[list[Indices], list[Indices]]:
    """Return the numbers of the images of each training source, and of each evaluation set.

    Args:
        counts: The images of each source and of `eval_path`, which follow each other in the numbering.
        sources: The number of training sources.

    Raises:
        RefusedError: A source has only images for evaluation, or an evaluation set has no image.
    """
    training: list[Indices] = []
    held_out: list[Indices] = []
    first = 0
    for field, count in zip(data.training_sources, counts, strict=False):
        chosen = held_out_examples(count, data.eval_fraction)
        training.append(first + np.flatnonzero(~chosen))
        if data.eval_fraction:
            held_out.append(first + np.flatnonzero(chosen))
        if not len(training[-1]):
            raise RefusedError(f"data.eval_fraction: holds every image of {field} out", "Use a smaller fraction.")
        if data.sources and data.eval_fraction and not len(held_out[-1]):
            raise RefusedError(f"data.eval_fraction: holds no image of {field} out", "Use a larger fraction.")
        first += count
    held_out += [first + np.arange(count, dtype=np.int64) for count in counts[sources:]]
    return training, held_out
