"""The structures of the builtin models by formula. A test compares them with the modules of `worker/tasks`."""

from collections.abc import Iterator
from itertools import pairwise

from service.plugins.planner.model_structure import ModelStructure, Parameter, Transformer
from trainyard.contract.spec.decoders import BuiltinDecoder, GptModel, LlamaModel
from trainyard.contract.spec.sections import ConvnetModel, MlpModel

MAX_LAYERS = 512
"""A model with more layers is not counted, because its list of parameters would take too much memory."""


def structure_of(model: BuiltinDecoder | ConvnetModel | MlpModel) -> ModelStructure | None:
    """Return the structure of a builtin model, or None if it has more than `MAX_LAYERS` layers."""
    match model:
        case GptModel():
            return _gpt(model) if model.layers <= MAX_LAYERS else None
        case LlamaModel():
            return _llama(model) if model.layers <= MAX_LAYERS else None
        case MlpModel():
            return _mlp(model)
        case ConvnetModel():
            return _convnet(model)


def _gpt(model: GptModel) -> ModelStructure:
    width = model.width
    parameters = [
        Parameter("embedding.weight", (model.vocab, width), "embedding"),
        Parameter("positions.weight", (model.context, width), "embedding"),
    ]
    for number in range(model.layers):
        parameters += _gpt_block(f"blocks.{number}", width)
    parameters += _affine("norm", width)
    if not model.tied:
        parameters.append(Parameter("head.weight", (model.vocab, width)))
    return ModelStructure(
        parameters=tuple(parameters),
        blocks=tuple(f"blocks.{number}" for number in range(model.layers)),
        output="embedding" if model.tied else "head",
        transformer=Transformer(
            width=width,
            layers=model.layers,
            heads=model.heads,
            key_value_heads=model.heads,
            head_width=width // model.heads,
            feed_forward=4 * width,
            vocabulary=model.vocab,
            gated=False,
            builtin=True,
        ),
    )


def _gpt_block(name: str, width: int) -> Iterator[Parameter]:
    yield from _affine(f"{name}.norm_attention", width)
    yield Parameter(f"{name}.attention.qkv.weight", (3 * width, width))
    yield from _linear(f"{name}.attention.out", width, width)
    yield from _affine(f"{name}.norm_feed_forward", width)
    yield from _linear(f"{name}.feed_forward.0", width, 4 * width)
    yield from _linear(f"{name}.feed_forward.2", 4 * width, width)


def _llama(model: LlamaModel) -> ModelStructure:
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    blocks = tuple(f"model.layers.{number}" for number in range(model.layers))
    parameters = [Parameter(embedding, (model.vocab, model.width), "embedding")]
    for block in blocks:
        parameters += _llama_block(block, model)
    parameters.append(Parameter("model.norm.weight", (model.width,), "norm"))
    if not model.tied:
        parameters.append(Parameter(head, (model.vocab, model.width)))
    return ModelStructure(
        parameters=tuple(parameters),
        blocks=blocks,
        output="lm_head",
        tied=frozenset({"lm_head"} if model.tied else ()),
        aliases=((head, embedding),) if model.tied else (),
        transformer=Transformer(
            width=model.width,
            layers=model.layers,
            heads=model.heads,
            key_value_heads=model.grouped_heads,
            head_width=model.width // model.heads,
            feed_forward=model.feed_forward_width,
            vocabulary=model.vocab,
            gated=True,
            builtin=True,
        ),
    )


def _llama_block(name: str, model: LlamaModel) -> Iterator[Parameter]:
    width, shared = model.width, model.grouped_heads * (model.width // model.heads)
    for projection, outputs in (("q_proj", width), ("k_proj", shared), ("v_proj", shared), ("o_proj", width)):
        yield Parameter(f"{name}.self_attn.{projection}.weight", (outputs, width))
    for projection in ("gate_proj", "up_proj"):
        yield Parameter(f"{name}.mlp.{projection}.weight", (model.feed_forward_width, width))
    yield Parameter(f"{name}.mlp.down_proj.weight", (width, model.feed_forward_width))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Parameter(f"{name}.{norm}.weight", (width,), "norm")


def _mlp(model: MlpModel) -> ModelStructure:
    names = [str(2 * number) for number in range(len(model.sizes) - 1)]
    pairs = zip(names, pairwise(model.sizes), strict=True)
    return ModelStructure(
        parameters=tuple(parameter for name, (before, after) in pairs for parameter in _linear(name, before, after)),
        blocks=tuple(names),
        output=names[-1],
        # A linear layer saves its input, which is the tensor that the activation before it saves.
        sizes=model.sizes[:-1],
    )


def _convnet(model: ConvnetModel) -> ModelStructure:
    first, second = model.channels, 2 * model.channels
    parameters = [
        *_convolution("features.0", 1, first),
        *_convolution("features.2", first, first),
        *_convolution("features.5", first, second),
        *_linear("head.2", second * 4, model.classes),
    ]
    return ModelStructure(
        parameters=tuple(parameters),
        blocks=("features.0", "features.2", "features.5", "head.2"),
        output="head.2",
        # Images have 8 x 8 pixels. Pooling saves the indices of its maxima, 8 bytes each, counted as two values.
        sizes=(64, 64 * first, (64 + 16 + 32) * first, (16 + 4 + 8) * second),
    )


def _affine(name: str, width: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,), "norm")
    yield Parameter(f"{name}.bias", (width,), "norm")


def _linear(name: str, before: int, after: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (after, before))
    yield Parameter(f"{name}.bias", (after,))


def _convolution(name: str, before: int, after: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (after, before, 3, 3))
    yield Parameter(f"{name}.bias", (after,))
