"""Curves made of characters. Pure: numbers in, lines out."""

import itertools
import math
from collections.abc import Sequence

from trainyard.cli.output import format_number

_LEVELS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "x"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """One line: eight levels from the smallest to the largest value; what is not finite is an x."""
    points = downsample(values, width)
    low, high = finite_range(points)
    return "".join(_LEVELS[round(_share(v, low, high) * 7)] if math.isfinite(v) else _NOT_FINITE for v in points)


def plot(
    values: Sequence[float], places: Sequence[float], *, unit: str = "step", width: int = 64, height: int = 8
) -> list[str]:
    """A curve `height` lines tall with its range on the left and its first and last place below."""
    points = widen(downsample(values, width), width)
    low, high = finite_range(points)
    eighths = [round(_share(v, low, high) * (height * 8 - 1)) + 1 if math.isfinite(v) else None for v in points]
    labels = {height - 1: format_number(high), 0: format_number(low)}
    lines = []
    for row in reversed(range(height)):
        lines.append(f"{labels.get(row, ''):>10} ┤{''.join(_cell(level, row) for level in eighths)}")
    if not places:
        return lines
    first, last = f"{unit} {places[0]:.12g}".lstrip(), f"{places[-1]:.12g}"
    return [*lines, " " * 12 + first + last.rjust(max(len(last) + 1, len(points) - len(first)))]


def downsample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: the mean of each bucket, or the first of it that is not finite."""
    if len(values) <= width:
        return list(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]


def widen(values: Sequence[float], width: int) -> list[float]:
    """A few values made wide, each repeated."""
    return [value for value in values for _ in range(max(1, width // max(1, len(values))))]


def finite_range(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest of the finite values; NaN where there is none."""
    finite = [v for v in values if math.isfinite(v)] or [math.nan]
    return min(finite), max(finite)


def _share(value: float, low: float, high: float) -> float:
    """How far it lies between the two, from 0 to 1."""
    span = high - low
    if math.isinf(span):  # of a run that diverges; halves are far enough apart to be told from each other
        return _share(value / 2, low / 2, high / 2)
    return (value - low) / span if span else 0.0


def _mean(values: Sequence[float]) -> float:
    odd = next((v for v in values if not math.isfinite(v)), None)
    return odd if odd is not None else sum(v / len(values) for v in values)


def _cell(level: int | None, row: int) -> str:
    if level is None:
        return _NOT_FINITE if row == 0 else " "
    filled = level - row * 8
    return " " if filled <= 0 else _LEVELS[min(filled, 8) - 1]
