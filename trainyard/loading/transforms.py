"""Turns examples as a data set has them into the input of a builtin model. A wrong scale is an error."""

from typing import TYPE_CHECKING, Any

from trainyard.contract.model_input import ImageInput, VectorInput

if TYPE_CHECKING:
    import torch


class ImageTransform:
    """Scales images as in the training."""

    def __init__(self, expected: ImageInput) -> None:
        self.expected = expected
        self.classes = expected.classes
        """The name of each output that the model was trained to use."""

    def __call__(self, images: Any) -> "torch.Tensor":
        """Return the model's input for images: fp32, shape (images, channels, height, width).

        Args:
            images: Pixels as the data set has them, from 0 to `expected.high`: an array, a tensor or nested lists of an
                image or several, with or without the dimension of channels; or rows of pixels.

        Raises:
            ValueError: The shape is another, or the pixels have another scale.
        """
        expected = self.expected
        raw = _as_tensor(images)
        pixels = (expected.channels, expected.height, expected.width)
        whole = expected.channels * expected.height * expected.width
        shapes = [pixels, pixels[1:] if expected.channels == 1 else pixels, (whole,)]
        if not any(tuple(raw.shape[-len(shape) :]) == shape and raw.ndim <= len(shape) + 1 for shape in shapes):
            raise ValueError(f"images of shape {tuple(raw.shape)} are not of {' x '.join(map(str, pixels))} pixels")
        rows = raw.reshape(-1, whole)
        self._check_scale(rows)
        return (rows / expected.high).reshape(-1, *pixels)

    def _check_scale(self, rows: "torch.Tensor") -> None:
        if not len(rows):
            return
        high = self.expected.high
        hint = f"pass the pixels as the data set has them, from 0 to {high:g}; they are scaled here"
        if not bool(rows.isfinite().all()) or float(rows.min()) < 0 or float(rows.max()) > high:
            raise ValueError(f"pixels from {float(rows.min()):g} to {float(rows.max()):g}: {hint}")
        brightest = rows.amax(dim=1)
        if bool(((brightest > 0) & (brightest <= high / 16)).any()):
            raise ValueError(f"an image has no pixel above {high / 16:g}, as if it was scaled already: {hint}")


class VectorTransform:
    """Checks vectors, which a model takes unchanged."""

    def __init__(self, expected: VectorInput) -> None:
        self.expected = expected

    def __call__(self, vectors: Any) -> "torch.Tensor":
        """Return the model's input for a vector or several: fp32, shape (vectors, size).

        Raises:
            ValueError: The size is another, or a value is not finite.
        """
        raw, size = _as_tensor(vectors), self.expected.size
        if raw.ndim not in (1, 2) or raw.shape[-1] != size:
            raise ValueError(f"vectors of shape {tuple(raw.shape)} do not have {size} numbers each")
        if not bool(raw.isfinite().all()):
            raise ValueError("a number is infinite or NaN")
        return raw.reshape(-1, size)


def _as_tensor(values: Any) -> "torch.Tensor":
    import torch

    try:
        return torch.as_tensor(values).to(torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"the examples are no array of numbers: {error}") from None
