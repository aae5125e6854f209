"""A Hugging Face model with a head for classes, from a local folder of safetensors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from worker.core.errors import RefusedError
from worker.tasks.hf_model import HfFolder


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


def load_classifier(folder: HfFolder, classes: Sequence[str], padding: int) -> nn.Module:
    """Return the model in fp32 and training mode; called with tokens and mask it returns logits (n, classes).

    A head that the folder lacks, or that is for another number of classes, is initialised from torch's generator.
    """
    from transformers import AutoModelForSequenceClassification

    load = partial(
        AutoModelForSequenceClassification.from_pretrained,
        use_safetensors=True,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **class_settings(classes),
    )
    model, report = folder.read("a model for classification of texts", load)
    body = f"{model.base_model_prefix}."
    for kind in ("missing_keys", "mismatched_keys"):
        keys = (name if isinstance(name, str) else name[0] for name in report.get(kind) or ())
        if bad := sorted(name for name in keys if name.startswith(body) and ".pooler." not in name):
            raise RefusedError(f"model.path: {folder.path} does not fit its config.json: it lacks {', '.join(bad[:5])}")
    folder.check_vocabulary(model)
    # Decoders take the logits of the last token that is no padding.
    model.config.pad_token_id = padding
    model.forward = partial(_forward, model.forward)
    model.train()
    return model  # type: ignore[no-any-return]


def _forward(own_forward: Callable[..., Any], tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = own_forward(input_ids=tokens, attention_mask=mask).logits
    return logits
