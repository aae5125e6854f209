"""A curve as inline SVG: what a page shows before its charts are there, and in lists. Pure."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from service.web.formatting import count, number

_LEFT, _BOTTOM, _MARGIN = 56, 22, 8


def draw(steps: Sequence[int], values: Sequence[float], *, title: str, width: int = 640, height: int = 240) -> Markup:
    """A line through the finite points, with the ends of both axes written out."""
    points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(points) < 2:
        return Markup("")
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = points[0][0], points[-1][0]
    path = _path(points, (first, last), (low, high), (width, height))
    template = Markup(
        '<svg class="sketch" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{title}">'
        '<path class="axis" d="M{left} {top}V{base}H{right}"/><path class="line" d="{path}"/></svg>'
        '<span class="high">{high}</span><span class="low">{low}</span>'
        '<span class="first">{first}</span><span class="last">{last}</span>'
    )
    return template.format(
        width=width, height=height, title=title, path=path, left=_LEFT, top=_MARGIN, base=height - _BOTTOM,
        right=width - _MARGIN, high=number(high), low=number(low), first=count(first), last=count(last),
    )  # fmt: skip


def draw_several(curves: Sequence[Sequence[tuple[int, float]]], *, title: str) -> Markup:
    """Lines of several runs in one frame, each of a class of its own, `run-0` and on."""
    finite = [[point for point in curve if math.isfinite(point[1])] for curve in curves]
    points = [point for curve in finite for point in curve]
    if len(points) < 2:
        return Markup("")
    steps = min(step for step, _ in points), max(step for step, _ in points)
    values = min(value for _, value in points), max(value for _, value in points)
    size = (1280, 420)
    line = Markup('<path class="line run-{run}" d="{path}"/>')
    lines = [
        line.format(run=run, path=_path(curve, steps, values, size))
        for run, curve in enumerate(finite)
        if len(curve) > 1
    ]
    template = Markup(
        '<svg class="sketch" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<span class="high">{}</span><span class="low">{}</span>'
        '<span class="first">{}</span><span class="last">{}</span>'
    )
    ends = (number(values[1]), number(values[0]), count(steps[0]), count(steps[1]))
    return template.format(*size, title, Markup("").join(lines), *ends)


def _path(
    points: Sequence[tuple[int, float]], steps: tuple[int, int], values: tuple[float, float], size: tuple[int, int]
) -> str:
    """Along the pixels of the frame."""
    across = (size[0] - _LEFT - _MARGIN) / max(1, steps[1] - steps[0])
    span = values[1] - values[0]
    tall = size[1] - _BOTTOM - 2 * _MARGIN
    segments = []
    for step, value in points:
        part = (value - values[0]) / span if span else 0.5
        segments.append(f"{_LEFT + (step - steps[0]) * across:.1f} {_MARGIN + tall * (1 - part):.1f}")
    return "M" + "L".join(segments)
