"""Loads adapters that no job has exported. The files of peft state the task and the head."""

import json
from pathlib import Path
from typing import Any

from trainyard.loading.errors import LoadError
from trainyard.loading.language_models import (
    IMAGES,
    OFFLINE,
    TEXT_CLASSES,
    add_adapters,
    architectures,
    load_body,
    load_tokenizer,
    load_whole,
    quiet,
    require_files,
    translated,
)
from worker.data.parsed_records import padding_of

_HEADS = ("score", "classifier", "classification_head")
"""The names of a classifier's head in models of transformers."""


def base_of_adapters(folder: Path) -> str:
    """Return the base model that peft's configuration names.

    Raises:
        LoadError: The configuration cannot be read, or names none.
    """
    named = _config(folder).get("base_model_name_or_path")
    if not isinstance(named, str):
        raise LoadError(f"the adapter_config.json of {folder} names no base model; name its folder with base=")
    return named


def load_foreign_adapters(folder: Path, base: Path, dtype: Any) -> Any:
    """Return the base model with the adapters of a folder.

    Args:
        base: The folder of the base model.
        dtype: Type of the weights. None: as in the files.

    Raises:
        LoadError: The adapters are for an unsupported task, or do not fit the base model.
    """
    task = _config(folder).get("task_type")
    if task == "FEATURE_EXTRACTION":
        return add_adapters(load_body(base, dtype), folder)
    if task == "SEQ_CLS":
        return add_adapters(_classifier(folder, base, dtype, TEXT_CLASSES), folder)
    if task not in (None, "CAUSAL_LM"):
        raise LoadError(
            f"the adapters in {folder} are for task {task}, and those for CAUSAL_LM, SEQ_CLS and FEATURE_EXTRACTION "
            "are loaded; load them with peft"
        )
    kinds = (kind for kind in (TEXT_CLASSES, IMAGES) for name in architectures(base) if name.endswith(kind))
    kind = next(kinds, None) if task is None else None
    return add_adapters(_classifier(folder, base, dtype, kind) if kind else load_whole(base, dtype), folder)


def _classifier(folder: Path, base: Path, dtype: Any, kind: str) -> Any:
    """Return a base model whose head has as many outputs as the head of the adapters, which will replace it."""
    import transformers

    require_files(base, "*.safetensors")
    classes = _classes(folder)
    settings = {} if classes is None else {"num_labels": classes}
    options = {**OFFLINE, **settings, "use_safetensors": True, "ignore_mismatched_sizes": True}
    with translated(base), quiet():
        model = getattr(transformers, f"AutoModel{kind}").from_pretrained(base, dtype=dtype or "auto", **options)
    if kind == TEXT_CLASSES and model.config.pad_token_id is None:
        model.config.pad_token_id = padding_of(load_tokenizer(base))
    return model


def _classes(folder: Path) -> int | None:
    """Return the number of outputs of the head that is stored with adapters; None without a head."""
    from safetensors import safe_open

    require_files(folder, "adapter_model.safetensors")
    with translated(folder), safe_open(folder / "adapter_model.safetensors", "pt") as file:
        for name in sorted(file.keys(), reverse=True):
            if name.endswith(".weight") and ".lora_" not in name and set(name.split(".")) & set(_HEADS):
                # Reverse order yields the last layer of a head with several: `out_proj` before `dense`.
                return int(file.get_slice(name).get_shape()[0])
    return None


def _config(folder: Path) -> dict[str, Any]:
    with translated(folder):
        config = json.loads((folder / "adapter_config.json").read_bytes())
        return config if isinstance(config, dict) else {}
