"""The kernel of `adam_` in Triton. To be imported only where Triton is installed."""

import torch
import triton
from triton import language as tl

_BLOCK = 1024
_WARPS = 4


def launch(
    weights: torch.Tensor,
    low: torch.Tensor | None,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    factor: torch.Tensor | None,
    numbers: list[float],
    key: list[int],
    compiled: bool,
) -> None:
    """Run the kernel: one program for each block of values."""
    count = len(weights)
    if not count:
        return
    halves = low is not None
    _adam[(triton.cdiv(count, _BLOCK),)](
        weights.view(torch.int16) if halves else weights,
        low if halves else weights,
        gradient,
        *((first, second) if first.dtype == torch.float32 else (first.view(torch.int16), second.view(torch.int16))),
        weights if factor is None else factor,
        count, *numbers, *key,
        halves, first.dtype != torch.float32, factor is not None, _BLOCK,
        num_warps=_WARPS,
        # A product and a sum that are rounded once would give other bits than the reference.
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _rounded(values, random):
    bits = values.to(tl.int32, bitcast=True)
    finite = (bits & 0x7F800000) != 0x7F800000
    special = tl.where(values != values, 0x7FC00000, bits)
    return (tl.where(finite, bits + random, special) >> 16).to(tl.int16)


@triton.jit
def _decoded(pointer, at, inside, ENCODED: tl.constexpr):
    stored = tl.load(pointer + at, mask=inside, other=0)
    return (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True) if ENCODED else stored


@triton.jit(do_not_specialize=["start", "mixed"])
def _adam(
    weights, low, gradient, first, second, factor, count,
    decay, penalty, first_share, second_rest, second_share, root, eps, rate, start, mixed,
    HALVES: tl.constexpr, ENCODED: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    values = tl.load(weights + at, mask=inside, other=0)
    if HALVES:
        lower = tl.load(low + at, mask=inside, other=0).to(tl.int32)
        upper = values.to(tl.int32) + (lower >> 15)
        values = ((upper << 16) | (lower & 0xFFFF)).to(tl.float32, bitcast=True)
    slope = tl.load(gradient + at, mask=inside, other=0).to(tl.float32)
    if SCALED:
        slope = slope * tl.load(factor)
    slope = slope + values * penalty
    values = values * decay
    mean = _decoded(first, at, inside, ENCODED)
    mean = mean + (slope - mean) * first_share
    square = _decoded(second, at, inside, ENCODED) * second_rest + slope * slope * second_share
    values = values - tl.div_rn(mean * rate, tl.sqrt_rn(square) * root + eps)
    if ENCODED:
        bits = at.to(tl.uint32) + start.to(tl.uint32)
        bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ mixed.to(tl.uint32)
        bits = (bits ^ (bits >> 15)) * 0x846CA68B
        bits = bits ^ (bits >> 16)
        tl.store(first + at, _rounded(mean, (bits & 0xFFFF).to(tl.int32)), mask=inside)
        tl.store(second + at, _rounded(square, (bits >> 16).to(tl.int32)), mask=inside)
    else:
        tl.store(first + at, mean, mask=inside)
        tl.store(second + at, square, mask=inside)
    if HALVES:
        whole = tl.where(values != values, 0x7FC00000, values.to(tl.int32, bitcast=True))
        tl.store(low + at, whole.to(tl.int16), mask=inside)
        tl.store(weights + at, ((whole >> 16) + ((whole >> 15) & 1)).to(tl.int16), mask=inside)
    else:
        tl.store(weights + at, values, mask=inside)
