"""fp32 values as two halves of 16 bits: a bf16 value to compute with, and the bits that it lacks.

The first half is the fp32 value rounded to the nearest bf16 value, ties away from zero: the upper half of the bits,
plus 1 if the highest bit of the lower half is 1. Since the lower half shows this, both halves together give the fp32
value back bit for bit.
"""

import torch


def split(values: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> None:
    """Store fp32 values as halves.

    Args:
        values: fp32, contiguous. Values that are not a number become the usual NaN, in place.
        high: bf16, contiguous, of as many elements. Infinite where the value is closer to infinity than to the largest
            bf16 number.
        low: int16, contiguous, of as many elements.
    """
    # The rounding of other NaNs would carry into the sign.
    values.masked_fill_(values.isnan(), torch.nan)
    # Little endian: the lower half comes first.
    halves = values.view(-1).view(torch.int16).view(-1, 2)
    low.view(-1).copy_(halves[:, 0])
    # Shifted by 15 bits, a half is -1 if its highest bit is 1, else 0.
    torch.sub(halves[:, 1], halves[:, 0] >> 15, out=high.view(-1).view(torch.int16))


def join(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return the fp32 values of two halves, in the shape of `high`."""
    values = torch.empty(high.shape, dtype=torch.float32, device=high.device)
    halves = values.view(-1).view(torch.int16).view(-1, 2)
    halves[:, 0] = low.reshape(-1)
    torch.add(high.reshape(-1).view(torch.int16), halves[:, 0] >> 15, out=halves[:, 1])
    return values
