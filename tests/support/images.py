"""Makes images of digits and a small vision transformer, without any download."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from worker.data.builtin import load_digits

SIZE = 16
"""Width and height of the images that the model takes."""


def digits(start: int, stop: int) -> list[tuple[bytes, str]]:
    """Return some of scikit-learn's digits as PNG files of 8 x 8 gray pixels, with their names."""
    from PIL import Image

    pixels, labels, _ = load_digits(0.0)
    shades = (pixels[start:stop, 0] * 255).round().to(torch.uint8).numpy()
    pairs = zip(shades, labels[start:stop].tolist(), strict=True)
    return [(encoded(Image.fromarray(image)), f"digit-{label}") for image, label in pairs]


def encoded(image: Any, format_: str = "PNG", **options: Any) -> bytes:
    """Return an image of Pillow as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format_, **options)
    return buffer.getvalue()


def write_folder(folder: Path, images: Iterable[tuple[bytes, str]]) -> Path:
    """Write images into a folder for each class, and return the folder above them."""
    for number, (data, label) in enumerate(images):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number:03}.png").write_bytes(data)
    return folder


def write_parquet(path: Path, images: Iterable[tuple[bytes, str]], **options: Any) -> Path:
    """Write images as `datasets` does, with the classes as numbers, and return the file."""
    from datasets import ClassLabel, Dataset, Features, Image

    rows = list(images)
    names = sorted({label for _, label in rows})
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    pictures = [{"bytes": data, "path": None} for data, _ in rows]
    numbers = [names.index(label) for _, label in rows]
    Dataset.from_dict({"image": pictures, "label": numbers}, features=features).to_parquet(str(path), **options)
    return path


def save_vit(folder: Path, *, classes: int = 3, size: int = SIZE, seed: int = 0) -> Path:
    """Save a vision transformer of width 32 and its image processor, and return the folder."""
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=SIZE,
        patch_size=4,
        num_labels=classes,
        # The bias of keys has no gradient but the rounding of others, which Adam makes as large as these.
        qkv_bias=False,
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessorPil(size={"height": size, "width": size}).save_pretrained(folder)
    return folder
