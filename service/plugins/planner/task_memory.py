"""The memory of one micro-batch of the tasks that classify or embed, beside parameters and optimizer. Pure functions;
bytes as in `activation_memory`.

Blocks of encoders save as much as the blocks of `worker/tasks/gpt.py`, wherever their norms are: the inputs of two
norms, of four linear layers, of the attention and of the GELU.
"""

from dataclasses import dataclass, replace

from service.plugins.planner.activation_memory import Adapters, ComputeDtype, Head, Op, adapted, block_ops
from service.plugins.planner.model_structure import Encoder, ModelStructure, Transformer
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.training_spec import TrainingSpec

MAX_TEXT_TOKENS = 2048
"""The default length of texts, `MAX_ROW_TOKENS` of `worker/tasks/causal_lm.py`; a test compares the two."""
TEXTS_OF_A_PAIR = 2
"""Without negatives, which the data may have."""


@dataclass(frozen=True)
class TaskWork:
    """One micro-batch on one rank."""

    ops: list[Op]
    """Operations of each block."""
    residual: int
    """The values of the residual stream."""
    head: Head
    batch: int
    """Bytes of the rank's examples of a step."""


def is_upper_bound(spec: TrainingSpec) -> bool:
    """Return whether an estimate assumes texts of the maximum length, because their lengths are not known."""
    return isinstance(spec.data, TextData) and spec.task_kind.replaces_head


def task_work(
    spec: TrainingSpec,
    structure: ModelStructure,
    micro: int,
    share: int,
    dtype: ComputeDtype,
    adapters: Adapters | None,
    context: int | None,
) -> TaskWork | None:
    """Return the work of a micro-batch, or None if the model's activations are not known.

    Args:
        micro: Its examples.
        share: The rank's examples of a step.
        context: The longest text of the model, in tokens.
    """
    sizes = structure.encoder or structure.transformer
    if sizes is None or not (_reads_images(sizes) or isinstance(spec.data, TextData)):
        # The worker refuses images for a model of texts, whose folder is not read before.
        return None
    rows, length, masked = _rows(spec, sizes, context)
    tokens = micro * rows * length
    if isinstance(sizes, Encoder):
        ops = encoder_ops(sizes, tokens, dtype, adapters, masked)
        batch = 4 * sizes.pixels * share
        before = _edges_of_encoder(sizes, tokens, micro, dtype)
    else:
        ops = block_ops(sizes, tokens, dtype, adapters, masked)
        batch = 0
        before = tokens * sizes.width * (4 + (0 if adapters else dtype.residual_bytes))
    batch = batch or 16 * rows * length * share + tokens * masked
    return TaskWork(ops, tokens * sizes.width, _head(spec, structure, micro * rows, tokens, before, dtype), batch)


def _rows(spec: TrainingSpec, sizes: Encoder | Transformer, context: int | None) -> tuple[int, int, int]:
    """Return the rows of an example, their tokens, and the tokens of a row whose attention has a mask: shorter texts
    are padded."""
    if isinstance(sizes, Encoder) and _reads_images(sizes):
        return 1, sizes.tokens, 0
    assert isinstance(spec.data, TextData)
    length = spec.data.max_length or min(context or MAX_TEXT_TOKENS, MAX_TEXT_TOKENS)
    rows = spec.embedding.group_size * TEXTS_OF_A_PAIR if spec.task_kind.makes_vectors else 1
    return rows, length, length


def _reads_images(sizes: Encoder | Transformer) -> bool:
    return isinstance(sizes, Encoder) and sizes.tokens > 0


def encoder_ops(model: Encoder, tokens: int, dtype: ComputeDtype, lora: Adapters | None, masked: int) -> list[Op]:
    """Return the operations of a block in forward order; `masked` as in `block_ops`."""
    w, f, c, s = tokens * model.width, tokens * model.feed_forward, dtype.bytes, dtype.residual_bytes
    # With autocast, the three projections cast the fp32 stream separately.
    copies = 3 if dtype.autocast else 1
    dropped = w if model.dropout else 0
    square, wide = model.width * model.width, model.width * model.feed_forward
    norm = Op(saved=s * w + 8 * tokens, grad_in=s * w, grad_out=s * w)
    ops = [
        norm,
        Op(saved=copies * c * w, grad_in=c * w, grad_out=3 * c * w, weights=3 * square, saved_output=3 * c * w),
        Op(
            saved=4 * c * w + 4 * tokens * model.heads + c * tokens * masked,
            grad_in=3 * c * w,
            grad_out=c * w,
            saved_output=c * w,
        ),
        Op(saved=dropped, grad_in=c * w, grad_out=c * w, weights=square, saved_output=c * w),
        norm,
        Op(saved=c * w, grad_in=c * w, grad_out=c * f, weights=wide, saved_output=c * f),
        Op(saved=c * f, grad_in=c * f, grad_out=c * f),
        Op(saved=c * f + dropped, grad_in=c * f, grad_out=c * w, weights=wide, saved_output=c * w),
    ]
    if lora is not None:
        for index, count, inputs in ((1, 3, w), (3, 1, w), (5, 1, w), (7, 1, f)):
            ops[index] = adapted(ops[index], count, inputs, tokens, dtype, lora)
    return ops


def _edges_of_encoder(model: Encoder, tokens: int, images: int, dtype: ComputeDtype) -> int:
    """Return the bytes saved before the first block and after the last: the input of a norm, and the pixels of images
    in the dtype of the convolution."""
    norm = dtype.residual_bytes * tokens * model.width + 8 * tokens + (tokens * model.width if model.dropout else 0)
    return norm + dtype.cast_bytes * images * model.pixels


def _head(
    spec: TrainingSpec, structure: ModelStructure, rows: int, tokens: int, before: int, dtype: ComputeDtype
) -> Head:
    """Return the memory from the last block to the loss. `before`: bytes saved beside the blocks."""
    width = (structure.encoder or structure.transformer).width  # type: ignore[union-attr]
    if spec.task_kind.makes_vectors:
        pairs = rows // TEXTS_OF_A_PAIR
        values, pooled = pairs * pairs, 4 * tokens * width
        # Pooling computes in fp32: the copy of the hidden states, and their product with the mask.
        copy = pooled if dtype.bytes < 4 and not dtype.autocast else 0
        forward = 4 * values + (pooled + copy if spec.embedding.pooling == "mean" else copy)
        return replace(_few(values), saved_bytes=before, forward=forward, backward=8 * values + pooled)
    outputs = max((p.shape[0] for p in structure.parameters if p.name in _LOGITS), default=2)
    if structure.encoder is not None:
        return replace(_few(outputs * rows), saved_bytes=before)
    # Decoders compute the logits of all tokens, and use the logits of the last token.
    logits = dtype.bytes * tokens * outputs
    return replace(
        _few(outputs * rows),
        saved_bytes=before + (dtype.cast_bytes or 0) * tokens * width,
        forward=logits,
        backward=logits + dtype.bytes * tokens * width,
    )


_LOGITS = frozenset({"classifier.weight", "classifier.out_proj.weight"})


def _few(values: int) -> Head:
    return Head(saved_bytes=0, logits=8 * values, forward=4 * values, backward=8 * values, after=0, weights=0)
