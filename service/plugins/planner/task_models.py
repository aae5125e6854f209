"""The structure of a Hugging Face model as a task builds it that does not write texts: its body, and the task's head.
Pure functions.

The names of a folder's tensors may be older than the names in the module that the worker builds; only sizes count here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.plugins.planner.model_structure import Encoder, ModelStructure, Parameter
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec

_POST_NORM = frozenset({"bert", "roberta", "xlm-roberta"})
_IMAGES = {"vit": 1, "deit": 2}
"""Families that read images, with the number of tokens beside the patches."""
ENCODERS = _POST_NORM | _IMAGES.keys()
"""Model families whose blocks are known: attention over all tokens, and a feed-forward of two layers with GELU."""
_OTHER_HEADS = frozenset({"lm_head", "embed_out", "cls", "classifier", "cls_classifier", "distillation_classifier"})
_OTHER_HEADS |= {"score", "qa_outputs"}
"""Modules at the top of a model, or in their place, that belong to other tasks, or to other classes."""


def has_head_of_task(spec: TrainingSpec) -> bool:
    """Return whether the spec trains a model with the head of a task, or without any, instead of a language model."""
    return spec.task_kind.replaces_head and isinstance(spec.model, HfModel)


def with_head_of_task(structure: ModelStructure, config: Mapping[str, Any], spec: TrainingSpec) -> ModelStructure:
    """Return the model with the head of the spec's task. The number of classes is known only after the data is read;
    here the folder's configuration states it."""
    family, width = config.get("model_type"), config.get("hidden_size")
    pools = family == "bert" and spec.task_kind.classifies and spec.task_kind.reads_texts
    body = [p for p in structure.parameters if not _is_of_other_head(p.name, structure.blocks, keeps_pooler=pools)]
    head: list[Parameter] = []
    if not spec.task_kind.makes_vectors and type(width) is int:
        classes = classes_of(config)
        if pools and not any(".pooler." in f".{p.name}" for p in body):
            head += _linear("pooler.dense", width, width)
        if family in ("roberta", "xlm-roberta"):
            head += [*_linear("classifier.dense", width, width), *_linear("classifier.out_proj", classes, width)]
        else:
            weight, bias = _linear("classifier", classes, width)
            # The heads of decoders have no bias.
            head += [weight] if structure.transformer is not None else [weight, bias]
    pooler = {p.module for p in body if ".pooler." in f".{p.name}"}
    return replace(
        structure,
        parameters=(*body, *head),
        output=None,
        tied=frozenset(),
        aliases=(),
        head=frozenset({p.module for p in head} | pooler),
    )


def classes_of(config: Mapping[str, Any]) -> int:
    """Return the number of classes of a configuration, as transformers counts them."""
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else 2


def encoder_of(config: Mapping[str, Any]) -> Encoder | None:
    """Return the sizes of an encoder, or None if the family's blocks are not known."""
    family = config.get("model_type")
    width, heads, feed_forward = (_size(config.get(name)) for name in _SIZES)
    if family not in ENCODERS or not width or not heads or not feed_forward:
        return None
    tokens = pixels = 0
    if family in _IMAGES:
        side, patch, channels = (_size(config.get(*one)) for one in _IMAGE_SIZES)
        if not side or not patch or not channels:
            return None
        tokens, pixels = (side // patch) ** 2 + _IMAGES[family], channels * side * side
    return Encoder(
        width=width,
        heads=heads,
        feed_forward=feed_forward,
        post_norm=family in _POST_NORM,
        dropout=_fraction(config.get("hidden_dropout_prob", 0.1 if family in _POST_NORM else 0.0)) > 0,
        tokens=tokens,
        pixels=pixels,
    )


_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size")
_IMAGE_SIZES: tuple[tuple[str, int], ...] = (("image_size", 224), ("patch_size", 16), ("num_channels", 3))


def _size(value: Any) -> int:
    """Return a size of a configuration; 0 for a value that is none."""
    return value if type(value) is int and 0 < value < 2**16 else 0


def _fraction(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _linear(module: str, outputs: int, inputs: int) -> list[Parameter]:
    return [Parameter(f"{module}.weight", (outputs, inputs)), Parameter(f"{module}.bias", (outputs,))]


def _is_of_other_head(name: str, blocks: tuple[str, ...], *, keeps_pooler: bool) -> bool:
    if any(name.startswith(f"{block}.") for block in blocks):
        return False
    parts = name.split(".")
    return bool(_OTHER_HEADS & {*parts}) or ("pooler" in parts and not keeps_pooler)
