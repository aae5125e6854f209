"""Decodes TensorBoard's `Event` messages without TensorBoard. Pure functions.

Field numbers are from `event.proto`, `summary.proto`, `tensor.proto` and the hparams plugin.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from worker.trackers.wire_format import Field, content, doubles, fields, signed, text, unpack, varints

_MAX_TAGS = 20_000
_TEXT_SUFFIX = "/text_summary"
"""The suffix that torch and tensorboardX append to the tag of a text."""
_FILE_TYPES = {b"\x89PNG": ".png", b"GIF8": ".gif", b"\xff\xd8\xff": ".jpg", b"RIFF": ".wav"}
_NUMBERS: Mapping[int, tuple[int, str, str]] = {
    1: (5, "<f", "<f"),
    2: (6, "<d", "<d"),
    3: (7, "<i", "varint"),
    9: (10, "<q", "varint"),
    19: (13, "<e", "half"),
}
"""The field of the values, the form of `tensor_content`, and the form of the values, by `dtype`."""


@dataclass(frozen=True)
class EventArtifact:
    """An image, a sound or a text."""

    tag: str
    extension: str
    data: bytes
    position: int | None = None
    """The place among several images of the tag."""


@dataclass(frozen=True)
class EventHistogram:
    """The number of values between adjacent edges."""

    tag: str
    edges: list[float]
    """Ascending, one more than `counts`."""
    counts: list[float]


@dataclass
class Event:
    """The parts of a message that are used."""

    time: float = 0.0
    """Seconds since 1970."""
    step: int = 0
    scalars: list[tuple[str, float]] = field(default_factory=list)
    artifacts: list[EventArtifact] = field(default_factory=list)
    histograms: list[EventHistogram] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Metadata:
    plugin: str = ""
    data: bytes = b""


def decode_event(message: bytes, plugins: MutableMapping[str, str]) -> Event:
    """Return the content of a message. Unknown parts, such as graphs, are left out.

    Args:
        plugins: The plugin of each tag of the file, which a writer need state only once; extended by this call.

    Raises:
        MalformedMessageError: The bytes are not an `Event` message.
    """
    event = Event()
    summaries: list[bytes] = []
    for number, value in fields(message):
        if number == 1:
            event.time = unpack("<d", value)
        elif number == 2:
            event.step = signed(value)
        elif number == 5:
            summaries.append(content(value))
    for summary in summaries:
        for number, value in fields(summary):
            if number == 1:
                _add_value(event, content(value), plugins)
    return event


def _add_value(event: Event, message: bytes, plugins: MutableMapping[str, str]) -> None:
    """Add a `Summary.Value`."""
    tag, metadata, body = "", _Metadata(), None
    for number, value in fields(message):
        if number == 1:
            tag = text(value)
        elif number == 9:
            metadata = _metadata(content(value))
        elif number in _BODIES:
            body = (number, value)
    if metadata.plugin and len(plugins) < _MAX_TAGS:
        plugins.setdefault(tag, metadata.plugin)
    plugin = metadata.plugin or plugins.get(tag, "")
    if plugin == "hparams":
        event.parameters.update(_hyperparameters(metadata.data))
    elif body:
        _BODIES[body[0]](event, tag, plugin, body[1])


def _add_simple(event: Event, tag: str, plugin: str, value: int | bytes) -> None:
    event.scalars.append((tag, unpack("<f", value)))


def _add_image(event: Event, tag: str, plugin: str, value: int | bytes) -> None:
    """Add an `Image` or an `Audio`, whose files are in fields of the same number."""
    for number, part in fields(content(value)):
        if number == 4:
            _add_encoded(event, tag, content(part))


def _add_tensor(event: Event, tag: str, plugin: str, value: int | bytes) -> None:
    tensor = list(fields(content(value)))
    if plugin == "scalars":
        scalar = _scalar(tensor)
        if scalar is not None:
            event.scalars.append((tag, scalar))
        return
    strings = [content(part) for number, part in tensor if number == 8]
    if plugin == "text" and strings:
        event.artifacts.append(EventArtifact(tag.removesuffix(_TEXT_SUFFIX), ".txt", b"\n".join(strings)))
    elif plugin == "histograms":
        # Each row has a lower limit, an upper limit and a count. The rows need not be in order.
        numbers = [number for kind, part in tensor if kind == 4 for number in doubles(part)]
        rows = sorted(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))
        if rows:
            _add_counts(event, tag, [*(row[0] for row in rows), rows[-1][1]], [row[2] for row in rows])
    elif plugin == "images":
        for index, encoded in enumerate(strings[2:]):  # The first two are width and height.
            _add_encoded(event, tag, encoded, index if len(strings) > 3 else None)


def _add_histogram(event: Event, tag: str, plugin: str, value: int | bytes) -> None:
    """Add a `HistogramProto`, which has the upper limits of its buckets."""
    lowest, limits, counts = 0.0, list[float](), list[float]()
    for number, part in fields(content(value)):
        if number == 1:
            lowest = unpack("<d", part)
        elif number == 6:
            limits = doubles(part)
        elif number == 7:
            counts = doubles(part)
    # torch writes an empty first bucket, whose limit is the lower limit of the next bucket.
    edges, counts = (limits, counts[1:]) if counts and not counts[0] else ([lowest, *limits], counts)
    _add_counts(event, tag, edges, counts)


def _add_counts(event: Event, tag: str, edges: list[float], counts: list[float]) -> None:
    ascending = all(one <= other for one, other in pairwise(edges))
    if counts and len(edges) == len(counts) + 1 and ascending and all(map(math.isfinite, [*edges, *counts])):
        event.histograms.append(EventHistogram(tag, edges, counts))


_BODIES: Mapping[int, Callable[[Event, str, str, int | bytes], None]] = {
    2: _add_simple,
    4: _add_image,
    5: _add_histogram,
    6: _add_image,
    8: _add_tensor,
}


def _add_encoded(event: Event, tag: str, encoded: bytes, position: int | None = None) -> None:
    for start, extension in _FILE_TYPES.items():
        if encoded.startswith(start):
            event.artifacts.append(EventArtifact(tag, extension, encoded, position))


def _scalar(tensor: list[Field]) -> float | None:
    """Return the first number of a `TensorProto`; None if it has no number, or its type is not a scalar's."""
    known = next((_NUMBERS.get(value) for number, value in tensor if number == 1 and isinstance(value, int)), None)
    if known is None:
        return None
    values, packed_form, value_form = known
    for number, value in tensor:
        if number == 4 and value:
            return unpack(packed_form, value)
        if number == values and value_form.startswith("<"):
            return unpack(value_form, value)
        if number == values and (integers := varints(value)):
            bits = integers[0]
            return unpack("<e", (bits & 0xFFFF).to_bytes(2, "little")) if value_form == "half" else signed(bits)
    return None


def _metadata(message: bytes) -> _Metadata:
    metadata = _Metadata()
    for number, value in fields(message):
        if number == 1:
            for inner, part in fields(content(value)):
                if inner == 1:
                    metadata.plugin = text(part)
                elif inner == 2:
                    metadata.data = content(part)
    return metadata


def _hyperparameters(message: bytes) -> dict[str, Any]:
    """Return the values of a `HParamsPluginData` that starts a session."""
    values: dict[str, Any] = {}
    for number, value in fields(message):
        if number == 3:
            for inner, entry in fields(content(value)):
                if inner == 1:
                    parts = dict(fields(content(entry)))
                    values[text(parts.get(1, b""))] = _json_value(content(parts.get(2, b"")))
    return values


def _json_value(message: bytes) -> Any:
    """Return a `google.protobuf.Value`; lists and mappings are left out as None."""
    for number, value in fields(message):
        if number == 2:
            return unpack("<d", value)
        if number == 3:
            return text(value)
        if number == 4:
            return bool(signed(value))
    return None
