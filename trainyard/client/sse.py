"""An incremental decoder of server-sent events (WHATWG HTML, section 9.2)."""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class RawEvent:
    """One event with its undecoded data."""

    id: str | None
    type: str
    data: str


class SseDecoder:
    """Decodes bytes as they arrive. It splits bytes, since `str.splitlines` also splits at U+0085 and U+2028."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        """The parts of an incomplete line, which are joined once: a long line may arrive in many."""
        self._id: str | None = None
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """Return the events that these bytes complete."""
        events = []
        for line in self._lines(chunk):
            event = self._parse_line(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, chunk: bytes) -> list[str]:
        if self._pending and self._pending[-1] == b"\r":
            chunk = self._pending.pop() + chunk
        # A trailing CR may be the first half of CR LF, so it stays pending.
        pending_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(chunk.removesuffix(b"\r") if pending_cr else chunk)
        if lines:
            lines[0] = b"".join([*self._pending, lines[0]])
            self._pending.clear()
        if rest:
            self._pending.append(rest)
        if pending_cr:
            self._pending.append(b"\r")
        return [line.decode(errors="replace") for line in lines]

    def _parse_line(self, line: str) -> RawEvent | None:
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
