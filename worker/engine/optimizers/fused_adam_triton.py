"""The kernels of `adam_` in Triton. To be imported only where Triton is installed."""

import torch
import triton
from triton import language as tl

from worker.engine.optimizers.encodings import BLOCK, table_of

_BLOCK = 1024
_WARPS = 4
# A product and a sum that are rounded once would give other bits than the reference.
_OPTIONS = {"num_warps": _WARPS, "enable_fp_fusion": False}


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
    first_scales: torch.Tensor | None = None,
    second_scales: torch.Tensor | None = None,
) -> None:
    """Run the kernel: one program for each block of values."""
    count = weights.numel()
    if not count:
        return
    halves = low is not None
    values = weights.view(torch.int16) if halves else weights, low if halves else weights, gradient
    scale = weights if factor is None else factor
    flags = halves, factor is not None
    if first_scales is None or second_scales is None:
        encoded = first.dtype != torch.float32
        moments = (first.view(torch.int16), second.view(torch.int16)) if encoded else (first, second)
        programs = (triton.cdiv(count, _BLOCK),)
        _adam[programs](*values, *moments, scale, count, *numbers, *key, *flags, encoded, _BLOCK, **_OPTIONS)
        return
    blocks, each = first_scales.numel(), first_scales.shape[1]
    tables = table_of(False, weights.device), table_of(True, weights.device)
    programs = (triton.cdiv(blocks, _BLOCK // BLOCK),)
    codes = first, second, first_scales, second_scales, *tables
    sizes = blocks, each, weights.shape[1]
    _adam_of_codes[programs](*values, *codes, scale, *sizes, *numbers, *key, *flags, _BLOCK // BLOCK, BLOCK, **_OPTIONS)


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


@triton.jit
def _updated(
    weights, low, gradient, factor, at, inside, mean, square,
    decay, penalty, first_share, second_rest, second_share, root, eps, rate,
    HALVES: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Update weights, and return the new moments."""
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
    mean = mean + (slope - mean) * first_share
    square = square * second_rest + slope * slope * second_share
    values = values - tl.div_rn(mean * rate, tl.sqrt_rn(square) * root + eps)
    if HALVES:
        whole = tl.where(values != values, 0x7FC00000, values.to(tl.int32, bitcast=True))
        tl.store(low + at, whole.to(tl.int16), mask=inside)
        tl.store(weights + at, ((whole >> 16) + ((whole >> 15) & 1)).to(tl.int16), mask=inside)
    else:
        tl.store(weights + at, values, mask=inside)
    return mean, square


@triton.jit
def _random_bits(at, start, mixed):
    bits = at.to(tl.uint32) + start.to(tl.uint32)
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ mixed.to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit(do_not_specialize=["start", "mixed"])
def _adam(
    weights, low, gradient, first, second, factor, count,
    decay, penalty, first_share, second_rest, second_share, root, eps, rate, start, mixed,
    HALVES: tl.constexpr, SCALED: tl.constexpr, ENCODED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    mean, square = _updated(
        weights, low, gradient, factor, at, inside,
        _decoded(first, at, inside, ENCODED), _decoded(second, at, inside, ENCODED),
        decay, penalty, first_share, second_rest, second_share, root, eps, rate, HALVES, SCALED,
    )  # fmt: skip
    if ENCODED:
        bits = _random_bits(at, start, mixed)
        tl.store(first + at, _rounded(mean, (bits & 0xFFFF).to(tl.int32)), mask=inside)
        tl.store(second + at, _rounded(square, (bits >> 16).to(tl.int32)), mask=inside)
    else:
        tl.store(first + at, mean, mask=inside)
        tl.store(second + at, square, mask=inside)


@triton.jit
def _nearest_below(table, relative):
    """Return the number of the largest value of the table, but the last, that is not larger; 0 if all are."""
    code = tl.zeros_like(relative).to(tl.int32)
    for bit in tl.static_range(8):
        higher = code + (128 >> bit)
        fits = (higher <= 253) & (tl.load(table + tl.minimum(higher, 253)) <= relative)
        code = tl.where(fits, higher, code)
    # The reference takes what is not a number as larger than all.
    return tl.where(relative != relative, 253, code)


@triton.jit
def _store_codes(
    values, random, codes, scales, table, at, inside, block, exists, POSITIVE: tl.constexpr
):  # fmt: skip
    """Store blocks of values (blocks, values of a block), as `EncodedRows.encode` does."""
    values = tl.where(inside, values, 0.0)
    largest = tl.max(tl.abs(values), axis=1)
    invalid = tl.max((values != values).to(tl.int32), axis=1) > 0
    scale = tl.where(invalid, float("nan"), largest)
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    inverse = tl.where(inverse == float("inf"), 0.0, inverse)
    relative = values * inverse[:, None]
    code = _nearest_below(table, relative)
    below = tl.load(table + code)
    step = tl.load(table + code + 1) - below
    code += ((relative - below) > step * (random.to(tl.float32) * 0.0000152587890625)).to(tl.int32)
    if POSITIVE:
        # A second moment of zero would divide the first by epsilon alone.
        code = tl.maximum(code, (values > 0).to(tl.int32))
    tl.store(codes + at, code.to(tl.uint8), mask=inside)
    tl.store(scales + block, scale, mask=exists)


@triton.jit(do_not_specialize=["start", "mixed"])
def _adam_of_codes(
    weights, low, gradient, first, second, first_scales, second_scales, table, positive_table, factor,
    blocks, each, width,
    decay, penalty, first_share, second_rest, second_share, root, eps, rate, start, mixed,
    HALVES: tl.constexpr, SCALED: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    exists = block < blocks
    columns = ((block % each) * SIZE)[:, None] + tl.arange(0, SIZE)[None, :]
    at = (block // each * width)[:, None] + columns
    inside = exists[:, None] & (columns < width)
    mean = tl.load(table + tl.load(first + at, mask=inside, other=0).to(tl.int32))
    square = tl.load(positive_table + tl.load(second + at, mask=inside, other=0).to(tl.int32))
    mean *= tl.load(first_scales + block, mask=exists, other=0)[:, None]
    square *= tl.load(second_scales + block, mask=exists, other=0)[:, None]
    mean, square = _updated(
        weights, low, gradient, factor, at, inside, mean, square,
        decay, penalty, first_share, second_rest, second_share, root, eps, rate, HALVES, SCALED,
    )  # fmt: skip
    bits = _random_bits(at, start, mixed)
    first_random, second_random = (bits & 0xFFFF).to(tl.int32), (bits >> 16).to(tl.int32)
    _store_codes(mean, first_random, first, first_scales, table, at, inside, block, exists, False)
    _store_codes(square, second_random, second, second_scales, positive_table, at, inside, block, exists, True)
