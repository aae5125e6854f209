"""Reads the settings of an adapter in peft's format, and decides whether a training can continue it. Pure functions.

A field of `adapter_config.json` counts only if it differs from peft's default, so that other versions of peft are read.
A field that this module does not know, and that is set, is refused: it may change the adapter's results.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch

from worker.core.errors import RefusedError

Tensors = Mapping[str, torch.Tensor]

ADAPTER = "default"
"""peft's name of a run's only adapter."""
PREFIX = "base_model.model."
"""The names of the two modules in which peft wraps the base; names in its file begin with them."""
_MAGNITUDE = ".lora_magnitude_vector"

MERGE = "Merge it into its base with peft (merge_and_unload), and train from the merged model, without lora.adapter."
"""Hint for an adapter that changes weights differently from the adapters of a training."""
_NEW = "Train new adapters, without lora.adapter."
_CANNOT_MERGE = frozenset(
    {"PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT", "CARTRIDGE"}
    | {"POLY", "XLORA"}
)
"""Kinds of peft that add inputs to the model, or choose between adapters; there is no merged weight."""

_COMPARED = frozenset({"r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"})
_ORIGIN = frozenset(
    {"peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version"}
)
_SELECTION = frozenset(
    {"target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"}
)
"""Settings that select the adapted layers; the names of the tensors show the result."""
_TRAINING = frozenset(
    {"lora_dropout", "runtime_config", "eva_config", "corda_config", "loftq_config", "lora_ga_config"}
)
"""Settings of the adapter's training, whose result is in the tensors. `init_lora_weights` has its own rule."""
_TYPE_OF_LAYER = frozenset({"fan_in_fan_out", "megatron_core"})
"""Derived from the layers of the base model."""
_WITHOUT_EFFECT = _COMPARED | _ORIGIN | _SELECTION | _TRAINING | _TYPE_OF_LAYER

_REASONS: Mapping[str, tuple[str, str]] = {
    "bias": ("has trained biases of the base model", MERGE),
    "lora_bias": ("has adapters with biases", MERGE),
    "layer_replication": ("repeats layers of the base model", MERGE),
    "trainable_token_indices": ("has trained embeddings of single tokens", MERGE),
    "target_parameters": ("adapts parameters that are no layers, such as those of experts", MERGE),
    "alora_invocation_tokens": ("works only after its invocation tokens (aLoRA)", _NEW),
    "arrow_config": ("chooses between adapters (Arrow)", _NEW),
    "use_bdlora": ("has block-diagonal matrices (BD-LoRA)", MERGE),
    "use_qalora": ("has pooled inputs (QA-LoRA)", MERGE),
    "kasa_config": ("belongs to a base that KaSA has truncated", MERGE),
}
_INITIALISATIONS = (True, False, "true", "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base unchanged."""


def require_continuable(folder: str, config: Any) -> None:
    """Check the configuration of an adapter, the document of `adapter_config.json`.

    Raises:
        RefusedError: It is of another kind than LoRA, or has a property that no training here has.
    """
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        named = f", but of kind {kind}" if isinstance(kind, str) else ""
        raise RefusedError(
            f"lora.adapter: {folder} is not an adapter of LoRA{named}", _NEW if kind in _CANNOT_MERGE else MERGE
        )
    initial = config.get("init_lora_weights", True)
    if initial is not None and initial not in _INITIALISATIONS:
        raise RefusedError(
            f"lora.adapter: {folder} began with init_lora_weights `{initial}`, which changes the weights of the base",
            "Save it with peft's save_pretrained and path_initial_model_for_weight_conversion, so that it belongs to "
            "the unchanged base.",
        )
    defaults = _defaults()
    for field in sorted(config.keys() - _WITHOUT_EFFECT - {"init_lora_weights"}):
        if config[field] and config[field] != defaults.get(field):
            unknown = f"sets `{field}` in its adapter_config.json, which has no counterpart here"
            reason, hint = _REASONS.get(field, (unknown, MERGE))
            raise RefusedError(f"lora.adapter: {folder} {reason}", hint)


def _defaults() -> Mapping[str, Any]:
    from peft import LoraConfig

    defaults: dict[str, Any] = LoraConfig().to_dict()
    return defaults


def normalised(tensors: Tensors) -> Tensors:
    """Return an adapter's tensors by the names that peft writes. Our earlier exports had another name for the norms
    of DoRA."""
    return {
        name.removesuffix(".weight") if name.endswith(f"{_MAGNITUDE}.weight") else name: tensor
        for name, tensor in tensors.items()
    }


def peft_name(name: str) -> str:
    """Return the name in peft's file of an adapter's parameter."""
    whole, adapted = f".modules_to_save.{ADAPTER}.", f".{ADAPTER}."
    before, mark, after = name.rpartition(whole if whole in name else adapted)
    # peft has a module for the norms of DoRA, and had a parameter: its file has kept that name.
    return PREFIX + (before if before.endswith(_MAGNITUDE) else f"{before}.{after}" if mark else name)


def layers_of(names: Collection[str]) -> dict[str, None]:
    """Return the adapted layers among the names of peft's file, by their names in the model, in the order of the
    file."""
    layers = (re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_(?!embedding)\w+(\.\w+)?", name) for name in names)
    return dict.fromkeys(match[1] for match in layers if match)


def whole_modules_of(names: Collection[str]) -> dict[str, None]:
    """Return the modules that are trained whole among the names of peft's file."""
    return dict.fromkeys(
        name.removeprefix(PREFIX).rpartition(".")[0]
        for name in names
        if ".lora_" not in name and ".base_layer." not in name
    )


def ranks_of(tensors: Tensors) -> dict[str, int]:
    """Return the rank of each adapted layer."""
    ranks = {layer: tensors.get(f"{PREFIX}{layer}.lora_A.weight") for layer in layers_of(tensors)}
    return {layer: len(matrix) for layer, matrix in ranks.items() if matrix is not None and matrix.dim()}


def alphas_of(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the alpha of each adapted layer, by the patterns of the configuration.

    Raises:
        ValueError: The configuration has no such numbers and patterns.
    """
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(map(_is_number, (*patterns.values(), config.get("lora_alpha")))):
        raise ValueError("lora_alpha and the values of alpha_pattern must be numbers")
    try:
        # As in peft, the pattern must match the end of a layer's name.
        compiled = {re.compile(rf"(.*\.)?({pattern})$"): alpha for pattern, alpha in patterns.items()}
    except re.error as error:
        raise ValueError(f"alpha_pattern has an invalid regular expression: {error}") from None
    default = config["lora_alpha"]
    return {
        layer: float(next((alpha for pattern, alpha in compiled.items() if pattern.match(layer)), default))
        for layer in layers_of(tensors)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
