"""Moments of an optimizer in fewer bits: bf16, and int8 with a scale for each block.

Both round at random to one of the two nearest values, so that the expected value is exact: rounding to the nearest
would drop every change below half a step, and a moment changes by a thousandth in an update. The random bits are a
function of seed, step and position in the whole tensor, so they are the same after a resume and on any number of
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal

import torch

StateDtype = Literal["fp32", "bf16", "int8"]

BLOCK = 256
"""Values of a row that share a scale, their largest magnitude, as in arXiv:2110.02861."""
SHORTEST_ROW = 64
"""Rows with fewer values stay in fp32, whose scales would take too much memory."""
POSITIVE_MOMENTS = frozenset({"exp_avg_sq"})
"""Moments without negative values."""
_OCTAVES = 24
"""The smallest value of a positive moment other than zero is 2^-24 of the largest in its block."""
_TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.uint8}
_NEAREST = 2**15
"""A value in place of 16 random bits, which rounds to the nearest."""


def stored_dtype(shape: Sequence[int], dtype: StateDtype) -> torch.dtype:
    """Return the type of the stored values of a moment of a whole parameter; uint8 for the codes of int8."""
    short = len(shape) < 2 or prod(shape[1:]) < SHORTEST_ROW
    return torch.float32 if dtype == "int8" and short else _TORCH_DTYPES[dtype]


def scales_shape(shape: Sequence[int]) -> list[int]:
    """Return the shape of the scales of a tensor with these rows."""
    return [shape[0], -(-prod(shape[1:]) // BLOCK)]


@dataclass(frozen=True)
class EncodedRows:
    """Some rows of a stored moment, and how they are stored."""

    values: torch.Tensor
    """fp32 or bf16 values, or the codes of int8: uint8. Shape (rows, values of a row)."""
    scales: torch.Tensor | None = None
    """The scales of the codes: fp32, shape (rows, blocks)."""
    positive: bool = False
    """Whether the moment has no negative values."""

    def decode(self) -> torch.Tensor:
        """Return the values: fp32, shape (rows, values of a row). They share the memory of fp32 values."""
        if self.scales is None:
            return self.values.float()
        values = table_of(self.positive, self.values.device).index_select(0, self.values.flatten().int())
        return _scaled(values.view(self.values.shape), self.scales)

    def encode(self, values: torch.Tensor, random: torch.Tensor | None = None) -> None:
        """Store values.

        Args:
            values: fp32, of the same shape.
            random: 16 random bits for each value: int32, as many elements. None: round to the nearest.
        """
        if self.scales is not None:
            self._encode_blocks(values, self.scales, random)
        elif random is None or self.values.dtype == torch.float32:
            if self.values.data_ptr() != values.data_ptr():
                self.values.copy_(values)
        else:
            self.values.copy_(_rounded_to_bf16(values, random.view(values.shape)))

    def _encode_blocks(self, values: torch.Tensor, scales: torch.Tensor, random: torch.Tensor | None) -> None:
        blocks = _blocks(values.abs(), scales.shape[1])
        torch.amax(blocks, dim=-1, out=scales)
        # A block of zeros has the scale 0, and 0 / 0 is no number.
        relative = _scaled(values, scales.reciprocal().nan_to_num_(nan=torch.nan, posinf=0.0))
        table = table_of(self.positive, values.device)
        lower = torch.bucketize(relative, table, right=True, out_int32=True).sub_(1).clamp_(0, len(table) - 2)
        below = table.index_select(0, lower.flatten()).view_as(relative)
        step = table.index_select(0, lower.flatten() + 1).view_as(relative).sub_(below)
        bits = torch.full_like(lower, _NEAREST) if random is None else random.view(values.shape)
        codes = lower.add_(relative.sub_(below) > step.mul_(bits * 2.0**-16))
        if self.positive:
            # A second moment of zero would divide the first by epsilon alone.
            torch.maximum(codes, (values > 0).to(codes.dtype), out=codes)
        self.values.copy_(codes)


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return values multiplied by the scales of their blocks."""
    scaled = _blocks(values, scales.shape[1]) * scales.unsqueeze(-1)
    # Fused kernels need all values of a tensor next to each other.
    return scaled.flatten(1)[:, : values.shape[1]].contiguous()


def _blocks(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the values of rows in blocks: (rows, blocks, BLOCK), the last block filled with zeros."""
    missing = count * BLOCK - values.shape[1]
    padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
    return padded.view(-1, count, BLOCK)


@cache
def table_of(positive: bool, device: torch.device) -> torch.Tensor:
    """Return the values of the codes in ascending order: fp32, shape (255,).

    Updates divide by the root of a positive moment, so that its relative error counts: the steps of its values are
    equal in the logarithm. Others have the decades of arXiv:2110.02861, section 2.1, with twice as many values in
    each as in the decade below, made symmetric.
    """
    if positive:
        exponents = torch.linspace(-_OCTAVES, 0, 254, dtype=torch.float64)
        return torch.cat([torch.zeros(1), torch.exp2(exponents)]).float().to(device)
    decades = [10.0 ** (i - 6) * torch.linspace(0.1, 1, 2**i + 1, dtype=torch.float64)[1:] for i in range(7)]
    upper = torch.cat(decades)
    return torch.cat([-upper.flip(0), torch.zeros(1), upper]).float().to(device)


def _rounded_to_bf16(values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Return one of the two nearest bf16 values, each as likely as the value is near to it."""
    bits = values.view(torch.int32).add(random).bitwise_and_(-(2**16)).view(torch.float32)
    return torch.where(values.isfinite(), bits, values)


def random_bits(count: int, position: int, key: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return 32 random bits for each position of a tensor: int32, shape (count,).

    A hash of position and key by xor, shift and multiplication, with the constants of
    https://github.com/skeeto/hash-prospector (lowbias32). Integers overflow as in two's complement.

    Args:
        position: The first position.
        key: Integers; other keys give independent bits.
    """
    first, second = mixed(key)
    bits = torch.arange(count, dtype=torch.int32, device=device).add_(signed(position + first))
    bits.bitwise_xor_(_shifted(bits, 16)).mul_(0x7FEB352D).bitwise_xor_(signed(second))
    bits.bitwise_xor_(_shifted(bits, 15)).mul_(signed(0x846CA68B))
    return bits.bitwise_xor_(_shifted(bits, 16))


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    # torch shifts copies of the sign in.
    return (bits >> by).bitwise_and_(2 ** (32 - by) - 1)


def signed(number: int) -> int:
    """Return the integer of 32 bits with the same lower bits."""
    return (number + 2**31) % 2**32 - 2**31


def mixed(key: tuple[int, ...]) -> tuple[int, int]:
    """Return 64 bits that depend on each integer of a key, as two integers (SplitMix64)."""
    state = 0
    for number in key:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & 2**64 - 1
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 2**64 - 1
        state ^= state >> 31
    return state >> 32, state & 2**32 - 1
