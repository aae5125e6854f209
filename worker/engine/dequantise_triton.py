"""The kernel of `dequantise_` in Triton. To be imported only where Triton is installed."""

import torch
import triton
from triton import language as tl

_TILE = 2048
_WARPS = 4
_BLOCK = 64
"""As in `quantisation`."""


def launch(weight: torch.Tensor, held: torch.Tensor, levels: torch.Tensor, four_bits: bool) -> None:
    """Run the kernel: one program for each tile of a row."""
    rows, columns = weight.shape
    if rows and columns:
        _dequantise[(rows, triton.cdiv(columns, _TILE))](
            weight, held, levels, held.stride(0), columns, triton.cdiv(columns, _BLOCK),
            four_bits, _TILE, num_warps=_WARPS,
        )  # fmt: skip


@triton.jit
def _dequantise(
    weight, held, levels, stride, columns, blocks, FOUR_BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    held += row * stride
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < columns
    # The bytes of the row's scale may be at any address.
    bits = tl.load(held).to(tl.int32)
    for number in tl.static_range(1, 4):
        bits |= tl.load(held + number).to(tl.int32) << (8 * number)
    scale = bits.to(tl.float32, bitcast=True)
    if FOUR_BITS:
        share = tl.load(held + 4 + at // 64, mask=inside, other=0).to(tl.float32)
        share = tl.div_rn(share, 255.0 + tl.zeros_like(share))
        pair = tl.load(held + 4 + blocks + at // 2, mask=inside, other=0).to(tl.int32)
        code = tl.where(at % 2 == 0, pair >> 4, pair & 15)
        values = tl.load(levels + code) * (share * share * scale)
    else:
        code = tl.load(held + 4 + at, mask=inside, other=0).to(tl.int8, bitcast=True)
        values = code.to(tl.float32) * scale
    tl.store(weight + row * columns + at, values.to(weight.dtype.element_ty), mask=inside)
