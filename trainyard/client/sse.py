"""Server-sent events: bytes in, raw events out."""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class RawEvent:
    """One event as it stood on the wire."""

    id: str | None
    type: str
    data: str


class SseDecoder:
    """Incremental, on bytes: text splitters also break lines at U+0085 and U+2028, which data may hold."""

    def __init__(self) -> None:
        self._pending = b""
        self._id: str | None = None
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """The events completed by these bytes."""
        self._pending += chunk
        events = []
        for line in self._lines():
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self) -> list[str]:
        # A final CR may be half of a CR LF: it waits for the next bytes.
        held = b"\r" if self._pending.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(self._pending.removesuffix(held))
        self._pending = rest + held
        return [line.decode(errors="replace") for line in lines]

    def _take(self, line: str) -> RawEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> RawEvent | None:
        event = RawEvent(self._id, self._type or "message", "\n".join(self._data)) if self._data else None
        self._type, self._data = "", []
        return event
