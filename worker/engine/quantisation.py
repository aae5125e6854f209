"""Weights in 8 and 4 bits.

Each row of a weight (rows, columns) becomes a row of bytes by itself, so that a shard of rows needs no other row, and
has the same values whatever the number of shards.

`int8` (arXiv:2208.07339, section 2): the row's scale in fp32, then a code c of each value, which is c times the scale.
`nf4` (arXiv:2305.14314, section 3): the row's scale in fp32, the code k of each block's scale, then two codes a byte.
A block of 64 values has the scale (k / 255)^2 times the row's scale, and a value is one of 16 levels times the block's
scale. The paper quantises scales in groups of 256 blocks, which may cross rows.
"""

from functools import lru_cache
from typing import Literal

import torch
from torch.nn import functional

from worker.core.kernels import define_kernel

QuantisedDtype = Literal["int8", "nf4"]

_COMPARED = 4
"""Rows on which the kernel is compared with its reference."""
BLOCK = 64
"""Values of a row that share a scale, for `nf4`."""
CHUNK = 2**22
"""Values that are quantised or dequantised at once, in fp32."""
_SCALE_BYTES = 4
_LARGEST = 127
_SCALE_CODES = 255

# Quantiles of a normal distribution, with an exact zero (arXiv:2305.14314, appendix E).
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def row_bytes(columns: int, dtype: QuantisedDtype) -> int:
    """Return the bytes of a quantised row: a multiple of 4, so that a row can be viewed in any dtype."""
    blocks = -(-columns // BLOCK)
    codes = columns if dtype == "int8" else blocks + blocks * BLOCK // 2
    return _SCALE_BYTES + -(-codes // 4) * 4


@torch.no_grad()
def quantise(weight: torch.Tensor, dtype: QuantisedDtype) -> torch.Tensor:
    """Return the bytes of a weight (rows, columns): uint8, (rows, `row_bytes(columns, dtype)`)."""
    rows, columns = weight.shape
    held = torch.zeros(rows, row_bytes(columns, dtype), dtype=torch.uint8, device=weight.device)
    encode = _encode_int8 if dtype == "int8" else _encode_nf4
    for part in _parts(rows, columns):
        encoded = encode(weight[part].float())
        held[part, : encoded.shape[1]] = encoded
    return held


@torch.no_grad()
def dequantise(held: torch.Tensor, columns: int, dtype: QuantisedDtype, result: torch.dtype) -> torch.Tensor:
    """Return the weight (rows, columns) in the dtype `result`, rounded from fp32."""
    weight = torch.empty(len(held), columns, dtype=result, device=held.device)
    if torch.compiler.is_compiling():
        # The compiler fuses these operations itself.
        _dequantise(weight, held, None, dtype == "nf4")
    else:
        dequantise_(weight, held, _cached_levels(held.device), dtype == "nf4")
    return weight


def _dequantise(weight: torch.Tensor, held: torch.Tensor, levels: torch.Tensor | None, four_bits: bool) -> None:
    rows, columns = weight.shape
    decode = _decode_nf4 if four_bits else _decode_int8
    for part in _parts(rows, columns):
        weight[part] = decode(held[part], columns)


def _parts(rows: int, columns: int) -> list[slice]:
    size = max(1, CHUNK // columns)
    return [slice(start, start + size) for start in range(0, rows, size)]


def _encode_int8(weight: torch.Tensor) -> torch.Tensor:
    scales = weight.abs().amax(dim=1, keepdim=True) / _LARGEST
    codes = (weight / _divisors(scales)).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    return torch.cat((scales.view(torch.uint8), codes.view(torch.uint8)), dim=1)


def _decode_int8(held: torch.Tensor, columns: int) -> torch.Tensor:
    codes = held[:, _SCALE_BYTES : _SCALE_BYTES + columns]
    return codes.view(torch.int8).float().mul_(_row_scales(held))


def _encode_nf4(weight: torch.Tensor) -> torch.Tensor:
    rows, columns = weight.shape
    blocks = -(-columns // BLOCK)
    padded = functional.pad(weight, (0, blocks * BLOCK - columns)).view(rows, blocks, BLOCK)
    largest = padded.abs().amax(dim=2)
    row_scales = largest.amax(dim=1, keepdim=True)
    shares = (largest / _divisors(row_scales)).sqrt_().mul_(_SCALE_CODES).round_()
    # A block that is not zero must not become zero.
    scale_codes = torch.where(largest > 0, shares.clamp_(min=1), 0).to(torch.uint8)
    scales = _block_scales(scale_codes, row_scales)
    levels = torch.tensor(LEVELS, device=weight.device)
    codes = torch.bucketize(padded / _divisors(scales)[:, :, None], (levels[1:] + levels[:-1]) / 2, out_int32=True)
    first, second = codes.to(torch.uint8).flatten(1).view(rows, -1, 2).unbind(dim=2)
    return torch.cat((row_scales.view(torch.uint8), scale_codes, first << 4 | second), dim=1)


def _decode_nf4(held: torch.Tensor, columns: int) -> torch.Tensor:
    blocks = -(-columns // BLOCK)
    start, end = _SCALE_BYTES + blocks, _SCALE_BYTES + blocks + blocks * BLOCK // 2
    scales = _block_scales(held[:, _SCALE_BYTES:start], _row_scales(held))
    # The compiler does not know the cache.
    table = _level_pairs(held.device) if torch.compiler.is_compiling() else _cached_level_pairs(held.device)
    pairs = functional.embedding(held[:, start:end].int(), table)
    return pairs.view(len(held), blocks, BLOCK).mul_(scales[:, :, None]).flatten(1)[:, :columns]


def _row_scales(held: torch.Tensor) -> torch.Tensor:
    # A copy, since the bytes may be at any address.
    return held[:, :_SCALE_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32)


def _block_scales(codes: torch.Tensor, row_scales: torch.Tensor) -> torch.Tensor:
    return codes.float().div_(_SCALE_CODES).square_().mul_(row_scales)


def _divisors(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales == 0, 1.0, scales)


def _level_pairs(device: torch.device) -> torch.Tensor:
    """Return the two values of each byte: fp32, (256, 2)."""
    levels = torch.tensor(LEVELS, device=device)
    return torch.stack((levels.repeat_interleave(16), levels.repeat(16)), dim=1)


_cached_level_pairs = lru_cache(maxsize=16)(_level_pairs)


@lru_cache(maxsize=16)
def _cached_levels(device: torch.device) -> torch.Tensor:
    return torch.tensor(LEVELS, device=device)


dequantise_ = define_kernel(
    "dequantise_(Tensor(a!) weight, Tensor held, Tensor levels, bool four_bits) -> ()",
    _dequantise,
    module="worker.engine.dequantise_triton",
    part=lambda weight, held, *others: (weight[:_COMPARED], held[:_COMPARED], *others),
)
"""Write the weight of bytes, `nf4` with `four_bits`, else `int8`. `levels`: `LEVELS`, in fp32."""
