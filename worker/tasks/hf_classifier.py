"""A Hugging Face model with a head for classes, from a local folder of safetensors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from worker.core.errors import RefusedError
from worker.tasks.hf_model import HfFolder, without_cache


def class_names(config: Any) -> tuple[str, ...]:
    """Return the names of the classes that a model was trained for; empty if its configuration names none."""
    if not any("Classification" in name for name in getattr(config, "architectures", None) or ()):
        return ()
    return tuple(str(config.id2label[number]) for number in sorted(config.id2label))


def class_settings(classes: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a configuration that name the classes."""
    return {
        "num_labels": len(classes),
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def load_text_classifier(folder: HfFolder, classes: Sequence[str], padding: int) -> nn.Module:
    """Return the model in fp32 and training mode; called with tokens and mask it returns logits (n, classes).

    A head that the folder lacks, or that is for another number of classes, is initialised from torch's generator.
    """
    from transformers import AutoModelForSequenceClassification

    model = _load(folder, "a model for classification of texts", AutoModelForSequenceClassification, classes)
    folder.check_vocabulary(model)
    # Decoders take the logits of the last token that is no padding.
    model.config.pad_token_id = padding
    without_cache(model)
    model.forward = partial(_forward_tokens, model.forward)
    model.train()
    return model  # type: ignore[no-any-return]


def load_image_classifier(
    folder: HfFolder, classes: Sequence[str], shape: tuple[int, int, int] | None = None
) -> nn.Module:
    """Return the model in fp32 and training mode; called with images it returns logits (n, classes). Its head is
    initialised like the head of a text classifier.

    Args:
        shape: Channels, height and width of the images. None: whether the model takes them is known.

    Raises:
        RefusedError: The folder does not hold such a model, or the model does not take such images.
    """
    from transformers import AutoModelForImageClassification

    model = _load(folder, "a model for classification of images", AutoModelForImageClassification, classes)
    model.forward = partial(_forward_images, model.forward)
    if shape is not None:
        _check_images(folder, model, shape, len(classes))
    model.train()
    return model  # type: ignore[no-any-return]


def _load(folder: HfFolder, kind: str, loader: Any, classes: Sequence[str]) -> Any:
    return folder.load_weights(kind, loader, _is_of_head, **class_settings(classes))


def _is_of_head(model: Any, name: str) -> bool:
    return not name.startswith(f"{model.base_model_prefix}.") or ".pooler." in name


def _check_images(folder: HfFolder, model: Any, shape: tuple[int, int, int], classes: int) -> None:
    model.eval()
    try:
        with torch.no_grad():
            logits = model(torch.zeros(1, *shape))
    except (RuntimeError, ValueError) as error:
        text = str(error).strip().split("\n")[0]
        raise RefusedError(
            f"model.path: the model in {folder.path} does not take the images of {shape[2]} x {shape[1]} pixels that "
            f"its image processor makes: {text}",
            "Use the preprocessor_config.json that belongs to the model.",
        ) from error
    if tuple(logits.shape) != (1, classes):
        raise RefusedError(f"model.path: the model in {folder.path} does not have one output for each class")


def _forward_images(own_forward: Callable[..., Any], images: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = own_forward(pixel_values=images).logits
    return logits


def _forward_tokens(own_forward: Callable[..., Any], tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = own_forward(input_ids=tokens, attention_mask=mask).logits
    return logits
