"""Makes a model's input from an image: random parts and mirroring in training, then the model's image processor."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from worker.core.errors import RefusedError

_SHAPES = (3 / 4, 4 / 3)
"""The narrowest and the widest random part: width by height."""
_TRIES = 10
_WHOLE: dict[str, Any] = {"do_resize": False, "do_center_crop": False}
"""Options that preserve the size of an image."""
_PROBES = ((64, 48), (48, 96))
"""Sizes of images from which the shape of the input is found; it must not depend on them."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the images in training."""

    least_area: float | None
    """The smallest part of an image's area that is used; None: the whole image."""
    flip: bool

    def apply(self, image: Image.Image, size: tuple[int, int], draws: np.random.RandomState) -> Image.Image:
        """Return an image changed by `draws` alone. A random part has the width and height `size`."""
        if self.least_area is not None:
            part = _random_part(image.width, image.height, self.least_area, draws)
            image = image.crop(part).resize(size, Image.Resampling.BICUBIC)
        if self.flip and draws.random_sample() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image


@dataclass(frozen=True)
class PixelFormat:
    """The input of a model, as its image processor makes it."""

    processor: Any
    """An image processor of transformers, on Pillow."""
    channels: int
    height: int
    width: int

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Return an image of mode RGB as the processor makes it: fp32, (channels, height, width)."""
        return processed(self.processor, image)

    def training_pixels(
        self, image: Image.Image, augmentation: Augmentation, draws: np.random.RandomState
    ) -> torch.Tensor:
        """Return an image of mode RGB with random changes: fp32, (channels, height, width)."""
        changed = augmentation.apply(image, (self.width, self.height), draws)
        options = {} if augmentation.least_area is None else _WHOLE
        return processed(self.processor, changed, **options)


def pixel_format(processor: Any, where: str, *, cropped: bool = False) -> PixelFormat:
    """Return the input that an image processor makes. `where`: names it in messages; `cropped`: whether it also has to
    take random parts of images.

    Raises:
        RefusedError: It does not make a single array of a fixed shape of each image.
    """
    try:
        first, *others = (processed(processor, Image.new("RGB", size)) for size in _PROBES)
        channels, height, width = first.shape
        if cropped:
            others.append(processed(processor, Image.new("RGB", (width, height)), **_WHOLE))
        fits = all(other.shape == first.shape for other in others)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        text = str(error).strip().split("\n")[0]
        raise RefusedError(f"{where}: its image processor cannot be used: {text}") from error
    if not fits:
        raise RefusedError(
            f"{where}: its image processor makes arrays of different shapes of different images",
            "Set a height and a width as `size` in its preprocessor_config.json.",
        )
    return PixelFormat(processor, channels, height, width)


def processed(processor: Any, image: Image.Image, **options: Any) -> torch.Tensor:
    """Return an image of mode RGB as an image processor makes it: fp32, (channels, height, width)."""
    values = processor(images=[image], return_tensors="np", input_data_format="channels_last", **options)
    return torch.from_numpy(np.ascontiguousarray(values["pixel_values"][0], dtype=np.float32))


def _random_part(width: int, height: int, least_area: float, draws: np.random.RandomState) -> tuple[int, int, int, int]:
    """Return a part of an image, as left, top, right and bottom: its area and shape are drawn, as in the training of
    Inception (arXiv:1409.4842), and in torchvision's RandomResizedCrop."""
    for _ in range(_TRIES):
        area = width * height * draws.uniform(least_area, 1.0)
        shape = math.exp(draws.uniform(math.log(_SHAPES[0]), math.log(_SHAPES[1])))
        across, down = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < across <= width and 0 < down <= height:
            left, top = draws.randint(width - across + 1), draws.randint(height - down + 1)
            return left, top, left + across, top + down
    # Long and narrow: the middle, of the nearest shape.
    across = min(width, max(1, round(height * _SHAPES[1])))
    down = min(height, max(1, round(width / _SHAPES[0])))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
