"""Curves as lines of characters. Pure functions."""

import itertools
import math
from collections.abc import Sequence

from trainyard.cli.output import format_number

_LEVELS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "x"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Return a line with eight levels from the smallest to the largest value; `x` for a non-finite value."""
    points = downsample(values, width)
    low, high = finite_range(points)
    return "".join(_LEVELS[round(_fraction(v, low, high) * 7)] if math.isfinite(v) else _NOT_FINITE for v in points)


def plot(
    values: Sequence[float], positions: Sequence[float], *, unit: str = "step", width: int = 64, height: int = 8
) -> list[str]:
    """Return a plot of `height` lines with the range of values on the left and of x below."""
    points = widen(downsample(values, width), width)
    low, high = finite_range(points)
    eighths = [round(_fraction(v, low, high) * (height * 8 - 1)) + 1 if math.isfinite(v) else None for v in points]
    labels = {height - 1: format_number(high), 0: format_number(low)}
    lines = []
    for row in reversed(range(height)):
        lines.append(f"{labels.get(row, ''):>10} ┤{''.join(_cell(level, row) for level in eighths)}")
    if not positions:
        return lines
    first, last = f"{unit} {positions[0]:.12g}".lstrip(), f"{positions[-1]:.12g}"
    return [*lines, " " * 12 + first + last.rjust(max(len(last) + 1, len(points) - len(first)))]


def downsample(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values: the mean of each bucket, or its first non-finite value."""
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def widen(values: Sequence[float], width: int) -> list[float]:
    """Return `width` values by repeating each value, if there are fewer."""
    return [value for value in values for _ in range(max(1, width // max(1, len(values))))]


def finite_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and largest finite value; NaN if there is none."""
    finite = [v for v in values if math.isfinite(v)] or [math.nan]
    return min(finite), max(finite)


def _fraction(value: float, low: float, high: float) -> float:
    """Return the position of a value between `low` and `high`, from 0 to 1."""
    span = high - low
    if math.isinf(span):  # The difference can overflow for a run that diverges; halves cannot.
        return _fraction(value / 2, low / 2, high / 2)
    return (value - low) / span if span else 0.0


def _mean(values: Sequence[float]) -> float:
    odd = next((v for v in values if not math.isfinite(v)), None)
    return odd if odd is not None else sum(v / len(values) for v in values)


def _cell(level: int | None, row: int) -> str:
    if level is None:
        return _NOT_FINITE if row == 0 else " "
    filled = level - row * 8
    return " " if filled <= 0 else _LEVELS[min(filled, 8) - 1]
