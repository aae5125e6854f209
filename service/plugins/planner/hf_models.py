"""The structure of a Hugging Face model, from the contents of its folder. Pure functions.

Parameters come from the safetensors headers; the configuration determines tied weights and activations. The parameters
of an unknown model family are counted too, but its activations are not known.
"""

import re
from collections.abc import Mapping
from typing import Any

from service.plugins.planner.hf_folder import FolderContents, StoredTensor
from service.plugins.planner.model_structure import Kind, ModelStructure, Parameter, Transformer
from service.plugins.planner.task_models import ENCODERS, encoder_of

GATED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "smollm3", "granite", "olmo2"})
"""Model families with Llama's blocks: norm, attention, norm, three projections."""
_BLOCK = re.compile(r"(.*\.(?:layers|h|blocks))\.(\d+)\.")
_ENCODER_BLOCK = re.compile(r"(.*?\b(?:layers|layer))\.(\d+)\.")
_EMBEDDINGS = (
    *("embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions"),
    *("position_embeddings", "token_type_embeddings"),
)
_HEAD_NAMES = ("lm_head", "embed_out")
_INTEGER = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"})


def structure_of(contents: FolderContents) -> ModelStructure:
    """Return the structure of the model as the worker builds it, with tied weights once."""
    config = contents.config
    names = {name: tensor for name, tensor in contents.tensors.items() if not _is_buffer(name, tensor)}
    embedding = next((name for name in names if _last(name) in _EMBEDDINGS and name.endswith(".weight")), None)
    head = next((name for name in names if _last(name) in _HEAD_NAMES and name.endswith(".weight")), None)
    aliases: tuple[tuple[str, str], ...] = ()
    tied: frozenset[str] = frozenset()
    if embedding is not None and config.get("tie_word_embeddings", _ties_by_default(config)) is True:
        alias = head or "lm_head.weight"
        names.pop(alias, None)
        aliases, tied = ((alias, embedding),), frozenset({alias.removesuffix(".weight")})
    adapts_patches = config.get("model_type") in ENCODERS
    parameters = [
        Parameter(name, tensor.shape, _kind(name, tensor.shape, convolutions=adapts_patches))
        for name, tensor in names.items()
    ]
    parameters.sort(key=lambda parameter: _order(parameter.name))
    pattern = _ENCODER_BLOCK if config.get("model_type") in ENCODERS else _BLOCK
    blocks = sorted({block[0] for p in parameters if (block := _block(pattern, p.name))}, key=_order)
    return ModelStructure(
        parameters=tuple(parameters),
        blocks=tuple(blocks),
        output=(head or "lm_head.weight").removesuffix(".weight"),
        tied=tied,
        aliases=aliases,
        transformer=_transformer(config, len(blocks)),
        encoder=encoder_of(config),
    )


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the context length of the model in tokens."""
    return _positive(config.get("max_position_embeddings")) or _positive(config.get("n_positions"))


def _transformer(config: Mapping[str, Any], layers: int) -> Transformer | None:
    """Return the sizes of the decoder, or None if the family's blocks are not known."""
    family = config.get("model_type")
    width, heads = _positive(config.get("hidden_size")), _positive(config.get("num_attention_heads"))
    feed_forward, vocabulary = _positive(config.get("intermediate_size")), _positive(config.get("vocab_size"))
    if family not in GATED or not width or not heads or not feed_forward or not vocabulary:
        return None
    return Transformer(
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=_positive(config.get("num_key_value_heads")) or heads,
        head_width=_positive(config.get("head_dim")) or width // heads,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        gated=True,
        scales_logits=config.get("logits_scaling") not in (None, 1, 1.0),
    )


def _is_buffer(name: str, tensor: StoredTensor) -> bool:
    return tensor.dtype in _INTEGER or name.endswith((".inv_freq", ".masked_bias", ".attn.bias"))


def _ties_by_default(config: Mapping[str, Any]) -> bool:
    # transformers omits a setting from the file if it equals the default of the family.
    return config.get("model_type") in ("gpt2", "gemma", "gemma2")


def _kind(name: str, shape: tuple[int, ...], *, convolutions: bool) -> Kind:
    """Return the kind of a parameter; `convolutions`: two-dimensional convolutions count as linear layers."""
    if _last(name) in _EMBEDDINGS:
        return "embedding"
    if "norm" in _last(name).lower() or _last(name).startswith("ln_"):
        return "norm"
    linear = len(shape) == 2 or name.endswith(".bias") or (convolutions and len(shape) == 4)
    return "linear" if linear else "other"


def _last(name: str) -> str:
    """Return the last part of the name of the module that holds the parameter."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _block(pattern: re.Pattern[str], name: str) -> tuple[str, int] | None:
    match = pattern.match(name)
    return (f"{match[1]}.{match[2]}", int(match[2])) if match else None


def _order(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key with numbers by value, so that layer 10 follows layer 9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("."))


def _positive(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**40 else None
