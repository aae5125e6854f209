"""The loss of a linear head in 16 bits, with few passes over memory.

The weight is converted once. One kernel reads the logits of a chunk twice and leaves their gradient in their place.
Each chunk's product is added to one gradient of the weight, in fp32.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from trainyard.contract.spec.optimization import Loss
from worker.core.kernels import define_kernel
from worker.data.examples import IGNORED_LABEL
from worker.tasks.cross_entropy import Counted

CHUNK = 4096
"""Tokens of a chunk. Each further chunk reads and writes the gradient of the weight once more."""
_MULTIPLE = 128
"""Matrix products are fastest at multiples of this."""
_FP32_VALUES = 2**22
"""Values that the references convert to fp32 at once."""
_COMPARED = 8
"""Rows with a target, and rows without, on which the kernel is compared with its reference."""


class LinearHead(NamedTuple):
    """A head that is one matrix product."""

    weight: torch.Tensor
    """(vocabulary, width)."""
    bias: torch.Tensor | None = None

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., vocabulary) from `x` (..., width)."""
        # A frozen weight may be held in another dtype.
        return functional.linear(x, self.weight.to(x.dtype), self.bias)


def linear_head(head: Callable[..., torch.Tensor]) -> LinearHead | None:
    """Return the weights of a head that is one matrix product; None if it may do anything else."""
    if isinstance(stated := getattr(head, "__self__", None), LinearHead):
        return stated
    own: Callable[[], LinearHead | None] | None = getattr(head, "linear_head", None)
    if own:
        return own()
    if isinstance(head, nn.Module):
        if head._forward_hooks or head._forward_pre_hooks:
            return None
        head = head.forward
    # `fully_shard` makes subclasses of layers, which do not override this method.
    if getattr(head, "__func__", None) is not nn.Linear.forward:
        return None
    owner = getattr(head, "__self__", None)
    assert isinstance(owner, nn.Linear)
    return LinearHead(owner.weight, owner.bias)


def compute_dtype(hidden: torch.Tensor, head: LinearHead) -> torch.dtype | None:
    """Return the dtype of 16 bits in which the head's product is computed; None if it has another."""
    if not torch.is_autocast_enabled(hidden.device.type) and hidden.dtype != head.weight.dtype:
        return None
    return in_16_bits(hidden)


def in_16_bits(hidden: torch.Tensor) -> torch.dtype | None:
    """Return the dtype of 16 bits in which products of these values are computed; None if it has another."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def tokens_of_chunk(vocabulary: int, most: int) -> int:
    """Return the tokens of a chunk with at most that many logits."""
    tokens = max(1, min(CHUNK, most // vocabulary))
    return tokens if tokens < _MULTIPLE else tokens // _MULTIPLE * _MULTIPLE


def linear_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    head: LinearHead,
    dtype: torch.dtype,
    terms: Loss | Counted,
    *,
    chunk: int,
) -> torch.Tensor:
    """Return the summed loss (fp32, shape ()), or with the number of hits (fp32, (2,)).

    Args:
        hidden: (tokens, width).
        labels: int64, (tokens,); positions with `IGNORED_LABEL` do not count.
        dtype: bf16 or fp16, in which products are computed.
        chunk: Tokens whose logits exist at once.
    """
    weight, bias = head
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    values: torch.Tensor = _LinearLoss.apply(hidden, weight, bias, labels, dtype, terms, chunk)  # type: ignore[no-untyped-call]
    return values


class _LinearLoss(torch.autograd.Function):
    """The loss, whose gradients are computed in the forward, chunk by chunk, and scaled in the backward: no logits are
    saved or computed again (as in Liger Kernel, arXiv:2410.10989)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        dtype: torch.dtype,
        terms: Loss | Counted,
        chunk: int,
    ) -> torch.Tensor:
        ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        pass_ = _Chunks(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype), ctx)
        sums = pass_.run(labels, terms, chunk)
        # Not by `save_for_backward`: the backward scales them in place.
        ctx.gradients = pass_.of_hidden, pass_.of_weight, pass_.of_bias
        return sums if isinstance(terms, Counted) else sums[0]

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, dtypes = ctx.gradients, ctx.dtypes
        del ctx.gradients
        factor = factor[0] if factor.ndim else factor
        of_hidden, of_weight, of_bias = (
            # Converted before they are scaled, so that the product is not rounded to 16 bits first.
            None if gradient is None else gradient.float().mul_(factor).to(dtype)
            for gradient, dtype in zip(gradients, dtypes, strict=True)
        )
        return of_hidden, of_weight, of_bias, None, None, None, None


class _Chunks:
    """Computes the loss of all tokens and its gradients, a chunk at a time."""

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ctx: Any) -> None:
        """All tensors have the dtype of the products."""
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        self._hidden, self._weight, self._bias = hidden, weight, bias
        self.of_hidden = torch.empty_like(hidden) if needs_hidden else None
        self.of_weight = torch.empty_like(weight, dtype=torch.float32) if needs_weight else None
        """fp32, the sum over the chunks."""
        self.of_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias and bias is not None else None
        self._needs_gradient = any(ctx.needs_input_grad[:3])

    def run(self, labels: torch.Tensor, terms: Loss | Counted, chunk: int) -> torch.Tensor:
        """Return the loss and the number of hits: fp32, (2,)."""
        loss = terms.loss if isinstance(terms, Counted) else terms
        tokens, hidden = len(labels), self._hidden
        values = torch.empty(2, tokens, dtype=torch.float32, device=hidden.device)
        buffer = hidden.new_empty(min(chunk, tokens), self._weight.shape[0])
        for start in range(0, tokens, chunk):
            part = slice(start, min(start + chunk, tokens))
            logits = buffer[: part.stop - start]
            self._write_logits(hidden[part], logits)
            cross_entropy_(
                logits, labels[part], values[0, part], values[1, part],
                loss.label_smoothing, loss.z_loss, self._needs_gradient,
            )  # fmt: skip
            self._add_gradients(part, logits, first=start == 0)
        # Summed at once, so that the chunks do not change the sum.
        return values.sum(dim=1)

    def _write_logits(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        if self._bias is None:
            torch.mm(hidden, self._weight.t(), out=logits)
        else:
            torch.addmm(self._bias, hidden, self._weight.t(), out=logits)

    def _add_gradients(self, part: slice, gradient: torch.Tensor, *, first: bool) -> None:
        """`gradient`: of the logits of a part of the tokens."""
        if self.of_hidden is not None:
            torch.mm(gradient, self._weight, out=self.of_hidden[part])
        if self.of_weight is not None:
            add_product_(self.of_weight, gradient, self._hidden[part], not first)
        if self.of_bias is not None:
            self.of_bias += gradient.sum(dim=0, dtype=torch.float32)


def _cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    losses: torch.Tensor,
    hits: torch.Tensor,
    smoothing: float,
    z_loss: float,
    gradient: bool,
) -> None:
    for part in _parts(len(labels), logits.shape[1]):
        values, targets = logits[part].float(), labels[part]
        counted, index = targets != IGNORED_LABEL, targets.clamp(min=0)[:, None]
        normalizer = values.logsumexp(dim=-1)
        expected = (1 - smoothing) * values.gather(-1, index).squeeze(-1)
        if smoothing:
            expected += smoothing * values.mean(dim=-1)
        losses[part] = torch.where(counted, normalizer - expected + z_loss * normalizer.square(), 0.0)
        hits[part] = (values.argmax(dim=-1) == targets).float()
        if gradient:
            values.sub_(normalizer[:, None]).exp_().mul_((1 + 2 * z_loss * normalizer)[:, None])
            if smoothing:
                values.sub_(smoothing / logits.shape[1])
            values.scatter_add_(-1, index, torch.full_like(index, smoothing - 1, dtype=values.dtype))
            # Not by a product: what is not counted may be infinite.
            logits[part] = values.masked_fill_(~counted[:, None], 0.0)


def _compared_rows(
    logits: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor, hits: torch.Tensor, *others: Any
) -> tuple[Any, ...]:
    """Return the same arguments for rows of both kinds; for none if no row has a target, which would show nothing."""
    counted = labels != IGNORED_LABEL
    rows = counted.nonzero().flatten()[:_COMPARED]
    if len(rows):
        rows = torch.cat((rows, (~counted).nonzero().flatten()[:_COMPARED]))
    return logits[rows], labels[rows], losses[rows], hits[rows], *others


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, add: bool) -> None:
    if total.is_cuda and _adds_in_fp32(left.dtype, total.device):
        if add:
            torch.addmm(total, left.t(), right, out_dtype=torch.float32, out=total)
        else:
            torch.mm(left.t(), right, out_dtype=torch.float32, out=total)
        return
    # The product of two values of 16 bits is exact in fp32.
    wide = right.float()
    for part in _parts(left.shape[1], left.shape[0]):
        torch.addmm(total[part], left[:, part].float().t(), wide, beta=float(add), out=total[part])


@cache
def _adds_in_fp32(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether torch adds products of 16 bits to fp32 on a device: not before 2.8, and not for all devices."""
    ones = torch.ones(_MULTIPLE, _MULTIPLE, dtype=dtype, device=device)
    total = torch.empty_like(ones, dtype=torch.float32)
    try:
        torch.mm(ones.t(), ones, out_dtype=torch.float32, out=total)
        torch.addmm(total, ones.t(), ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 2 * _MULTIPLE).all())


def _parts(count: int, size: int) -> Iterator[slice]:
    """Yield parts of `count` rows with `size` values each."""
    step = max(1, _FP32_VALUES // max(1, size))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


cross_entropy_ = define_kernel(
    "cross_entropy_(Tensor(a!) logits, Tensor labels, Tensor(b!) losses, Tensor(c!) hits, float smoothing, "
    "float z_loss, bool gradient) -> ()",
    _cross_entropy,
    module="worker.tasks.cross_entropy_triton",
    part=_compared_rows,
)
"""Write the loss of each row of `logits` (targets, classes) and whether its largest logit belongs to its label, as in
`summed_terms`: fp32, (targets,). With `gradient` the logits become the gradient of the summed loss."""

add_product_ = define_kernel("add_product_(Tensor(a!) total, Tensor left, Tensor right, bool add) -> ()", _add_product)
"""Write left^T right into `total` (fp32), or add it: from `left` (n, rows) and `right` (n, columns) in 16 bits, without
a rounding to 16 bits."""
