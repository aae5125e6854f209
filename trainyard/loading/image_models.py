"""Loads image classifiers in Hugging Face form, with the transform that makes their input from files and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.loading.language_models import OFFLINE, load_whole, translated

if TYPE_CHECKING:
    import torch


class PictureTransform:
    """Decodes and scales pictures as in the training, without its random changes."""

    def __init__(self, processor: Any, classes: tuple[str, ...]) -> None:
        self.processor = processor
        """The image processor of transformers, which gets images of mode RGB."""
        self.classes = classes
        """The name of each output."""

    def __call__(self, pictures: Any) -> "torch.Tensor":
        """Return the model's input for pictures: fp32, shape (pictures, channels, height, width).

        Args:
            pictures: The path of a file, the bytes of a file, or an image of Pillow; or a list of them.

        Raises:
            ValueError: A picture is not an image, or is damaged; the message names it.
            OSError: A file cannot be read.
        """
        import torch

        from worker.data.image_pixels import processed

        several = pictures if isinstance(pictures, Sequence) and not isinstance(pictures, str | bytes) else [pictures]
        if not several:
            raise ValueError("there is no picture")
        return torch.stack([processed(self.processor, _opened(one, number)) for number, one in enumerate(several)])


def load_classifier(folder: Path, dtype: Any, model: Any = None) -> tuple[Any, PictureTransform]:
    """Return the model of a folder, and the transform that makes its input.

    Args:
        dtype: Type of the weights. None: as in the files.
        model: The base model with the adapters of the folder. None: the folder has a whole model.

    Raises:
        LoadError: The folder has no safetensors or no image processor, or transformers refuses it.
    """
    from transformers import AutoImageProcessor

    model = load_whole(folder, dtype) if model is None else model
    with translated(folder):
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil", **OFFLINE)
    names = model.config.id2label
    return model, PictureTransform(processor, tuple(str(names[number]) for number in sorted(names)))


def _opened(picture: Any, number: int) -> Any:
    from PIL import Image

    from worker.data.image_decoding import BadImageError, decode_image, to_rgb

    try:
        if isinstance(picture, Image.Image):
            return to_rgb(picture)
        if isinstance(picture, str | Path):
            return decode_image(Path(picture).expanduser().read_bytes())
        if isinstance(picture, bytes):
            return decode_image(picture)
    except BadImageError as error:
        name = picture if isinstance(picture, str | Path) else f"picture {number}"
        raise ValueError(f"{name} {error}") from None
    kind = type(picture).__name__
    raise ValueError(f"picture {number} is a {kind}: pass a path, the bytes of a file, or an image of Pillow")
