"""What the APIs of trackers raise, and requests as they get them."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any


@dataclass(frozen=True)
class TrackerRequest:
    """An authenticated request of a tracker's client."""

    method: str
    path: str
    query: Mapping[str, str]
    execution: int
    body: BufferedIOBase
    """At most `length` bytes may be read."""
    length: int


class TrackerError(Exception):
    """The request cannot be carried out; the client gets the status, the code and the message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def document(self) -> dict[str, Any]:
        return {"error_code": self.code, "message": self.message}
