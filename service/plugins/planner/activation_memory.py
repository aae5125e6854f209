"""Activation memory of a block, operation by operation: what the forward saves and what the backward allocates. Pure
functions. All byte counts are per micro-batch and rank.

The accounting follows Korthikanti et al. 2022 (arXiv:2205.05198, section 4.1), with the tensors that autograd saves for
`worker/tasks/gpt.py`, `worker/tasks/llama.py` and the Llama of transformers, counted from live tensors
(`bench/planner.py` compares them). Attention is fused (FlashAttention, arXiv:2205.14135): it saves q, k, v, its output
and 4 bytes per token and head. For an fp16 Llama this sums to T h (12 + 4 r + 8 f / h) bytes: T tokens, width h,
feed-forward width f, and r the number of key-value heads over the number of heads.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.plugins.planner.model_structure import Transformer


@dataclass(frozen=True)
class ComputeDtype:
    """The dtype of the forward pass."""

    bytes: int
    """Bytes of a computed value: 4, or 2 in bf16 and fp16."""
    autocast: bool = False
    """Tensors are cast at each use. With weights in fp32, so is the residual stream between blocks."""
    casts_weights: bool = True
    """With autocast: weights are in fp32, and autograd keeps their cast copies until the backward of that use (PyTorch
    documentation, `torch.autocast`)."""
    converts_base: bool = False
    """Frozen weights are converted at each use (`lora.base_dtype`), and no copy of them is saved."""

    @property
    def residual_bytes(self) -> int:
        """Bytes of a value of the residual stream, which begins in the dtype of the embeddings."""
        return 4 if self.autocast and self.casts_weights else self.bytes

    @property
    def norm_bytes(self) -> int:
        """Bytes of a value in LayerNorm, which autocast computes in fp32."""
        return 4 if self.autocast else self.bytes

    @property
    def cast_bytes(self) -> int:
        """Bytes per element of a cast copy."""
        return self.bytes if self.autocast and self.bytes < 4 else 0

    @property
    def weight_copy_bytes(self) -> int:
        """Bytes per element of a weight's copy that is saved for the backward."""
        return self.cast_bytes if self.casts_weights and not self.converts_base else 0


@dataclass(frozen=True)
class Op:
    """One operation of the forward pass. All fields but `weights` are in bytes."""

    saved: int
    """Saved for the backward."""
    grad_in: int
    """The gradient of its inputs."""
    grad_out: int
    """The gradient of its output."""
    weights: int = 0
    """Elements of its weight."""
    saved_output: int = 0
    """Its output, if selective activation checkpointing saves it."""


@dataclass(frozen=True)
class Adapters:
    """LoRA adapters in a block (arXiv:2106.09685): their rank, and the layers that have them."""

    rank: int
    names: frozenset[str]
    dropout: bool = False
    dora: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether the worker adds the adapter within the layer's product in 16 bits (`worker/engine/lora_linear.py`),
        instead of beside it."""
        return not (self.dropout or self.dora)

    def has(self, *names: str) -> int:
        return sum(name in self.names for name in names)


def block_ops(
    model: Transformer, tokens: int, dtype: ComputeDtype, adapters: Adapters | None, masked: int = 0
) -> list[Op]:
    """Return the operations of a decoder block in forward order.

    Args:
        masked: Tokens of a row whose attention has a mask, because examples share it; 0: causal attention without a
            mask. Each block's attention saves the mask in its own dtype, and keys and values repeated for every head.
    """
    if model.gated:
        return _llama(model, tokens, dtype, adapters, masked)
    return _gpt(model, tokens, dtype, adapters, masked)


def _gpt(model: Transformer, tokens: int, dtype: ComputeDtype, lora: Adapters | None, masked: int) -> list[Op]:
    # w, f: elements of the hidden state and of the feed-forward; c, s: bytes of a computed value and of a value in a
    # norm.
    w, f, c, s = tokens * model.width, tokens * model.feed_forward, dtype.bytes, dtype.norm_bytes
    norm = Op(saved=s * w + 8 * tokens, grad_in=s * w, grad_out=s * w)
    square = model.width * model.width
    ops = [
        norm,
        Op(saved=c * w, grad_in=c * w, grad_out=3 * c * w, weights=3 * square, saved_output=3 * c * w),
        Op(
            saved=4 * c * w + 4 * tokens * model.heads + c * tokens * masked,
            grad_in=3 * c * w,
            grad_out=c * w,
            saved_output=c * w,
        ),
        Op(saved=0, grad_in=c * w, grad_out=c * w, weights=square, saved_output=c * w),
        norm,
        Op(saved=c * w, grad_in=c * w, grad_out=c * f, weights=model.width * model.feed_forward, saved_output=c * f),
        Op(saved=c * f, grad_in=c * f, grad_out=c * f),
        Op(saved=c * f, grad_in=c * f, grad_out=c * w, weights=model.width * model.feed_forward, saved_output=c * w),
    ]
    if lora is not None:
        inputs = {1: ("qkv", w), 3: ("out", w), 5: ("0", w), 7: ("2", f)}
        for index, (name, size) in inputs.items():
            ops[index] = adapted(ops[index], lora.has(name), size, tokens, dtype, lora)
    return ops


def _llama(model: Transformer, tokens: int, dtype: ComputeDtype, lora: Adapters | None, masked: int) -> list[Op]:
    # h, f, q, k: elements of the hidden state, the feed-forward, the queries and the keys; c, s: bytes of a computed
    # value and of the residual.
    h, f, c, s = tokens * model.width, tokens * model.feed_forward, dtype.bytes, dtype.residual_bytes
    q, k = tokens * model.heads * model.head_width, tokens * model.key_value_heads * model.head_width
    attended = q if masked else k
    norm = Op(saved=_saved_by_rms_norm(model, tokens, dtype, frozen=lora is not None), grad_in=s * h, grad_out=s * h)
    # The builtin model computes the rotation in each layer: a cosine and a sine in fp32 for each pair of values.
    rotation = 4 * tokens * model.head_width if model.builtin else 0
    # With autocast, each projection casts an fp32 stream separately.
    input_copies = (3, 2) if s > c else (1, 1)
    heads = model.width * model.head_width
    ops = [
        norm,
        Op(
            saved=input_copies[0] * c * h,
            grad_in=c * h,
            grad_out=c * (q + 2 * k),
            weights=heads * (model.heads + 2 * model.key_value_heads),
            saved_output=c * (q + 2 * k),
        ),
        Op(
            saved=c * (2 * q + 2 * attended) + 4 * tokens * model.heads + rotation + c * tokens * masked,
            grad_in=c * (q + 2 * attended),
            grad_out=c * q,
            saved_output=c * q,
        ),
        Op(
            saved=c * q if dtype.autocast and lora else 0,
            grad_in=c * q,
            grad_out=c * h,
            weights=heads * model.heads,
            saved_output=c * h,
        ),
        norm,
        Op(
            saved=input_copies[1] * c * h,
            grad_in=c * h,
            grad_out=2 * c * f,
            weights=2 * model.width * model.feed_forward,
            saved_output=2 * c * f,
        ),
        Op(saved=3 * c * f, grad_in=2 * c * f, grad_out=c * f),
        Op(saved=c * f, grad_in=c * f, grad_out=c * h, weights=model.width * model.feed_forward, saved_output=c * h),
    ]
    if lora is not None:
        inputs = {1: (("q_proj", "k_proj", "v_proj"), h), 3: (("o_proj",), q), 5: (("gate_proj", "up_proj"), h)}
        for index, (names, size) in {**inputs, 7: (("down_proj",), f)}.items():
            ops[index] = adapted(ops[index], lora.has(*names), size, tokens, dtype, lora)
    return ops


def _saved_by_rms_norm(model: Transformer, tokens: int, dtype: ComputeDtype, *, frozen: bool) -> int:
    """Return the bytes that RMSNorm saves: its input and a factor for each token.

    Operation by operation, it computes in fp32 and saves its normalized input for the gradient of its weight.
    """
    h, s = tokens * model.width, dtype.residual_bytes
    if model.fused_norms:
        return s * h + 4 * tokens
    return 4 * h + 4 * tokens + (0 if frozen else s * h)


def adapted(op: Op, count: int, inputs: int, tokens: int, dtype: ComputeDtype, lora: Adapters) -> Op:
    """Return an operation extended by the values that adapters save: the value between their two matrices and, with
    dropout, its input and mask.

    With autocast, the gradient of the input of an adapter beside its layer exists in both dtypes besides the gradient
    of the layer's input.

    Args:
        count: The number of adapters; each belongs to a layer.
        inputs: Elements of the input of a layer.
    """
    each = dtype.bytes * tokens * lora.rank + ((dtype.bytes + 1) * inputs if lora.dropout else 0)
    casts = (dtype.bytes + 4) * inputs if count and dtype.autocast and not lora.is_fused else 0
    return replace(op, saved=op.saved + count * each, grad_in=op.grad_in + casts)


def layer_op(inputs: int, outputs: int, weights: int, examples: int, dtype: ComputeDtype) -> list[Op]:
    """Return a layer of an MLP or convnet with its activation function; it saves its input."""
    c = dtype.bytes * examples
    return [Op(saved=c * inputs, grad_in=c * inputs, grad_out=c * outputs, weights=weights, saved_output=c * outputs)]


def saved(ops: Iterable[Op], dtype: ComputeDtype) -> int:
    """Return the bytes that a block's forward saves for its backward."""
    return sum(op.saved + dtype.weight_copy_bytes * op.weights for op in ops)


def pinned_bytes(size: int) -> int:
    """Return the host memory for a tensor of `size` bytes in pinned memory, whose allocations are powers of two."""
    return 1 << (size - 1).bit_length() if size else 0


@dataclass(frozen=True)
class Head:
    """The part from the last block to the loss. All fields but `weights` and `chunks` are in bytes."""

    saved_bytes: int
    """Saved until its backward: the input and output of the final norm."""
    logits: int
    """Saved until its backward: the values from the logits that the loss needs."""
    forward: int
    """Allocated beside both at the peak of its forward."""
    backward: int
    """Allocated beside both at the peak of its backward."""
    after: int
    """Allocated in place of `logits` while the gradient of the head's input is computed."""
    weights: int
    """Elements of the output layer's weight."""
    chunks: int = 1
    """The number of parts in which the logits are computed."""


MAX_LOGITS = 2**26
"""Elements. The limit in `worker/tasks/language_loss.py`; a test compares the two."""


def tokens_of_chunk(width: int, least: int) -> int:
    """Return the tokens of a chunk whose head is trained, as `worker/tasks/language_loss.py` does."""
    return max(least, width * 6 // 14 // 128 * 128)


def tokens_of_linear_chunk(vocabulary: int) -> int:
    """Return the tokens of a chunk of a linear head in 16 bits, as `worker/tasks/linear_loss.py` does."""
    tokens = max(1, min(4096, 8 * MAX_LOGITS // vocabulary))
    return tokens if tokens < 128 else tokens // 128 * 128


def head_of(model: Transformer, tokens: int, dtype: ComputeDtype, *, frozen: bool, linear: bool = True) -> Head:
    """Return the memory of the final norm, the logits and the cross-entropy loss.

    Above `MAX_LOGITS` elements, logits are computed in chunks. The loss is computed in fp32: logits, log-probabilities
    and two gradients of the same size, with 4 bytes per element each. With `linear`, the logits of chunks in 16 bits
    become their gradient in place.
    """
    h, c, s = tokens * model.width, dtype.bytes, dtype.residual_bytes
    saved_bytes = _saved_by_rms_norm(model, tokens, dtype, frozen=frozen) if model.gated else dtype.norm_bytes * h
    saved_bytes += 0 if frozen else c * h
    weights = model.vocabulary * model.width
    copy = dtype.weight_copy_bytes * weights
    chunk_tokens = max(1, MAX_LOGITS // model.vocabulary)
    narrow = 2 if c == 2 else 0
    if tokens <= chunk_tokens:
        v = tokens * model.vocabulary
        wide = 4 * v if c == 2 else 0
        return Head(
            saved_bytes=saved_bytes + copy,
            logits=4 * v,
            forward=(narrow or 4) * v + wide + (s * h if dtype.autocast else 0),
            backward=8 * v,
            after=4 * v + narrow * v + c * h,
            weights=weights,
        )
    if linear and c == 2:
        chunk_tokens = min(tokens, tokens_of_linear_chunk(model.vocabulary))
        inputs = c * h if dtype.autocast else 0
        logits = c * chunk_tokens * model.vocabulary + inputs
        return Head(
            saved_bytes=saved_bytes + copy,
            logits=0,
            forward=logits,
            backward=logits + c * h,
            after=c * h,
            weights=weights,
            chunks=max(2, -(-tokens // chunk_tokens)),
        )
    if not frozen:
        chunk_tokens = tokens_of_chunk(model.width, chunk_tokens)
    v = min(tokens, chunk_tokens) * model.vocabulary
    return Head(
        saved_bytes=saved_bytes + (c * h if frozen else 0) + copy,
        logits=0,
        forward=(4 + 4 + narrow) * v,
        backward=(12 + narrow) * v + c * h,
        after=(4 + narrow) * v + c * h,
        weights=weights,
        chunks=max(2, -(-tokens // chunk_tokens)),
    )


def no_head(outputs: int, examples: int) -> Head:
    """Return the head of a model whose output layer is one of its blocks: only the loss of a few outputs remains."""
    values = outputs * examples
    return Head(saved_bytes=0, logits=8 * values, forward=4 * values, backward=8 * values, after=0, weights=0)
