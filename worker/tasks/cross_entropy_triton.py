"""The kernel of `cross_entropy_` in Triton. To be imported only where Triton is installed."""

import torch
import triton
from triton import language as tl

from worker.data.examples import IGNORED_LABEL

_BLOCK = 4096
_WARPS = 8


def launch(
    logits: torch.Tensor,
    labels: torch.Tensor,
    losses: torch.Tensor,
    hits: torch.Tensor,
    smoothing: float,
    z_loss: float,
    gradient: bool,
) -> None:
    """Run the kernel: one program for each row, whose classes are next to each other in memory."""
    rows, classes = logits.shape
    assert logits.stride(1) == 1
    assert labels.is_contiguous()
    assert losses.is_contiguous()
    assert hits.is_contiguous()
    if not rows:
        return
    block = min(_BLOCK, triton.next_power_of_2(classes))
    _cross_entropy_rows[(rows,)](
        logits, logits.stride(0), labels, losses, hits, classes,
        smoothing, z_loss, IGNORED_LABEL, gradient, block, num_warps=_WARPS,
    )  # fmt: skip


@triton.jit
def _cross_entropy_rows(
    logits, stride, labels, losses, hits, classes, smoothing, z_loss, ignored,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    label = tl.load(labels + row)
    counted = label != ignored
    of_label = tl.load(logits + tl.where(counted, label, 0)).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    # Each lane has its own largest value, the sum of exponentials relative to it, and where it is first.
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    exponentials = tl.zeros((BLOCK,), tl.float32)
    values_sum = tl.zeros((BLOCK,), tl.float32)
    first = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, classes, BLOCK):
        columns = start + lanes
        values = tl.load(logits + columns, mask=columns < classes, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(largest, values)
        first = tl.where(values > largest, columns, first)
        # Of a lane without a finite value there is no difference.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        exponentials = exponentials * tl.exp(largest - base) + tl.exp(values - base)
        values_sum += tl.where(columns < classes, values, 0.0)
        largest = higher
    most = tl.max(largest, axis=0)
    total = tl.sum(exponentials * tl.exp(largest - most), axis=0)
    normalizer = most + tl.log(total)
    index = tl.min(tl.where(largest == most, first, classes), axis=0)
    expected = (1 - smoothing) * of_label + smoothing * (tl.sum(values_sum, axis=0) / classes)
    loss = normalizer - expected + z_loss * normalizer * normalizer
    tl.store(losses + row, tl.where(counted, loss, 0.0))
    tl.store(hits + row, tl.where(index == label, 1.0, 0.0))
    if GRADIENT:
        # All threads have read the label's logit before one of them replaces it.
        tl.debug_barrier()
        factor = 1 + 2 * z_loss * normalizer
        for start in range(0, classes, BLOCK):
            columns = start + lanes
            inside = columns < classes
            values = tl.load(logits + columns, mask=inside, other=0.0).to(tl.float32)
            result = tl.exp(values - normalizer) * factor - smoothing / classes
            result += tl.where(columns == label, smoothing - 1, 0.0)
            result = tl.where(counted, result, 0.0)
            tl.store(logits + columns, result.to(logits.dtype.element_ty), mask=inside)
