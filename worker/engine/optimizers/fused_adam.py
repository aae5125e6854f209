"""An update by Adam or AdamW that reads and writes every stored value once.

It computes as torch's optimizers do, in fp32, with each operation rounded by itself: eager code, compiled code
and the kernel in Triton give the same bits for every value, wherever it is in a tensor.
"""

from functools import cache, partial
from typing import Any, NamedTuple

import torch

from worker.core.kernels import define_kernel
from worker.engine.optimizers.encodings import EncodedRows, signed

_VALUES = 2**20
"""Values that the reference converts to fp32 at once."""
_COMPARED = 2**14
"""Values on which the kernel is compared with its reference."""
_FACTOR = 5
"""The position of the argument `factor`."""
_NAN = 0x7FC00000
_EXPONENT = 0x7F800000


class Numbers(NamedTuple):
    """The factors of an update."""

    decay: float
    """Multiplies the weights first (AdamW)."""
    penalty: float
    """The share of the weights that is added to their gradient (Adam); 0: none."""
    first_share: float
    """1 - beta1."""
    second_rest: float
    """beta2."""
    second_share: float
    """1 - beta2."""
    root: float
    """Multiplies the root of the second moment: torch divides by a number in other ways in other kernels."""
    eps: float
    rate: float
    """The learning rate, divided by what corrects the first moment."""


def numbers_of(group: dict[str, Any], step: int, *, decoupled: bool) -> Numbers:
    """Return the factors of update `step`, counted from 1, of a group of Adam or, if `decoupled`, of AdamW."""
    rate, decay, (beta1, beta2) = float(group["lr"]), float(group["weight_decay"]), group["betas"]
    return Numbers(
        decay=1 - rate * decay if decoupled else 1.0,
        penalty=0.0 if decoupled else decay,
        first_share=1 - beta1,
        second_rest=beta2,
        second_share=1 - beta2,
        root=(1 - beta2**step) ** -0.5,
        eps=group["eps"],
        rate=rate / (1 - beta1**step),
    )


def _reference(
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
    update = partial(_update_parts, factor=factor, numbers=numbers, compiled=compiled)
    if first_scales is None or second_scales is None:
        update(*map(_flat, (weights, low, gradient, first, second)), key=key)
        return
    width = weights.shape[1]
    size = max(1, _VALUES // width)
    for begin in range(0, len(weights), size):
        rows = slice(begin, begin + size)
        moments = EncodedRows(first[rows], first_scales[rows]), EncodedRows(second[rows], second_scales[rows], True)
        mean, square = (encoded.decode() for encoded in moments)
        high, lower, slope = (_flat(None if tensor is None else tensor[rows]) for tensor in (weights, low, gradient))
        start = [signed(key[0] + begin * width), key[1]]
        update(high, lower, slope, mean.view(-1), square.view(-1), key=start)
        bits = _random_bits(mean.numel(), torch.tensor(start, dtype=torch.int32, device=weights.device))
        moments[0].encode(mean, bits & 0xFFFF)
        moments[1].encode(square, (bits >> 16) & 0xFFFF)


def _flat(tensor: Any) -> Any:
    return None if tensor is None else tensor.view(-1)


def _update_parts(
    weights: torch.Tensor,
    low: torch.Tensor | None,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    factor: torch.Tensor | None,
    numbers: list[float],
    key: list[int],
    compiled: bool,
) -> None:
    """Update values in a row whose moments are in fp32 or bf16."""
    values = torch.tensor(numbers, dtype=torch.float32, device=weights.device)
    scale = torch.ones((), device=weights.device) if factor is None else factor
    size = max(1, len(weights)) if compiled else _VALUES
    update = _compiled_update() if compiled else _update
    for start in range(0, len(weights), size):
        part = slice(start, start + size)
        hashed = torch.tensor([signed(key[0] + start), key[1]], dtype=torch.int32, device=weights.device)
        halves = None if low is None else low[part]
        update(weights[part], halves, gradient[part], first[part], second[part], scale, values, hashed)


@cache
def _compiled_update() -> Any:
    return torch.compile(_update, dynamic=True)


def _update(
    weights: torch.Tensor,
    low: torch.Tensor | None,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scale: torch.Tensor,
    numbers: torch.Tensor,
    key: torch.Tensor,
) -> None:
    decay, penalty, first_share, second_rest, second_share, root, eps, rate = numbers.unbind()
    values = weights if low is None else _joined(weights, low)
    slope = gradient.float() * scale
    slope = slope + values * penalty
    values = values * decay
    mean = first.float()
    mean = mean + (slope - mean) * first_share
    square = second.float() * second_rest + slope * slope * second_share
    # In fp64, because torch's root of fp32 values on CPUs is not always the nearest value.
    values = values - mean * rate / (square.double().sqrt().float() * root + eps)
    if first.dtype == torch.float32:
        first.copy_(mean)
        second.copy_(square)
    else:
        bits = _random_bits(len(weights), key)
        first.view(torch.int16).copy_(_rounded(mean, bits & 0xFFFF))
        second.view(torch.int16).copy_(_rounded(square, (bits >> 16) & 0xFFFF))
    if low is None:
        weights.copy_(values)
        return
    whole = torch.where(values.isnan(), _NAN, values.view(torch.int32))
    low.copy_(whole.to(torch.int16))
    # Rounded to the nearest, ties away from zero.
    weights.view(torch.int16).copy_(((whole >> 16) + (whole >> 15 & 1)).to(torch.int16))


def _first_rows(*args: Any) -> tuple[Any, ...]:
    """Return the same arguments for the first rows."""
    count = max(1, _COMPARED // max(1, args[0][0].numel())) if len(args[0]) else 0
    return tuple(
        arg[:count] if isinstance(arg, torch.Tensor) and number != _FACTOR else arg for number, arg in enumerate(args)
    )


def _joined(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    lower = low.int()
    upper = high.view(torch.int16).int() + (lower >> 15)
    return (upper << 16 | lower & 0xFFFF).view(torch.float32)


def _rounded(values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Return the bits of one of the two nearest bf16 values: int16."""
    bits = values.view(torch.int32)
    finite = (bits & _EXPONENT) != _EXPONENT
    special = torch.where(values.isnan(), _NAN, bits)
    return (torch.where(finite, bits + random, special) >> 16).to(torch.int16)


def _random_bits(count: int, key: torch.Tensor) -> torch.Tensor:
    """Return the same as `encodings.random_bits`."""
    bits = torch.arange(count, dtype=torch.int32, device=key.device) + key[0]
    bits = (bits ^ _shifted(bits, 16)) * 0x7FEB352D ^ key[1]
    bits = (bits ^ _shifted(bits, 15)) * signed(0x846CA68B)
    result: torch.Tensor = bits ^ _shifted(bits, 16)
    return result


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    lower: torch.Tensor = (bits >> by) & 2 ** (32 - by) - 1
    return lower


adam_ = define_kernel(
    "adam_(Tensor(a!) weights, Tensor(b!)? low, Tensor gradient, Tensor(c!) first, Tensor(d!) second, Tensor? factor, "
    "float[] numbers, int[] key, bool compiled, Tensor(e!)? first_scales=None, Tensor(f!)? second_scales=None) -> ()",
    _reference,
    module="worker.engine.optimizers.fused_adam_triton",
    part=_first_rows,
)
"""Update values that are next to each other in memory: shape (n,), or (rows, values of a row).

Args:
    weights: fp32, or with `low` (int16) the bf16 half of the values.
    gradient: fp32 or bf16. With `factor` (fp32, shape ()) it counts multiplied by that.
    first, second: Moments, both fp32, or both bf16 or the codes of int8, which are rounded at random.
    numbers: See `Numbers`.
    key: The two numbers of the hash, see `encodings.mixed`: the first one with the position of the first value added.
    compiled: Whether plain torch is compiled.
    first_scales, second_scales: The scales of codes: fp32, (rows, blocks).
"""
