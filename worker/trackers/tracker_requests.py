"""Shared parts of the tracker APIs: requests, errors, and the prefixes of a program's runs."""

import itertools
import json
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any

MAX_RUNS = 10_000
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Reporter:
    """The rank that reports."""

    execution: int
    rank: int


@dataclass(frozen=True)
class TrackerRequest:
    """An authenticated request of a tracker's client."""

    method: str
    path: str
    query: Mapping[str, str]
    reporter: Reporter
    body: BufferedIOBase
    """At most `length` bytes may be read."""
    length: int
    encoding: str = ""
    """The encoding of the body: empty or `gzip`."""

    def read(self, limit: int) -> bytes:
        """Return the body.

        Raises:
            TrackerError: It has more than `limit` bytes.
        """
        if self.length > limit:
            raise TrackerError(413, "BAD_REQUEST", f"a request may have at most {limit} bytes")
        return self.body.read(self.length)

    def json_object(self, limit: int) -> dict[str, Any]:
        """Return the JSON object in the body; an empty object if there is no body.

        Raises:
            TrackerError: The body is not a JSON object, or is larger than `limit` bytes.
        """
        text = self.read(limit)
        try:
            text = _decompress(text, limit) if self.encoding == "gzip" else text
            document = json.loads(text) if text else {}
        except (ValueError, RecursionError, zlib.error):
            raise TrackerError(400, "BAD_REQUEST", "the body is not JSON") from None
        if not isinstance(document, dict):
            raise TrackerError(400, "BAD_REQUEST", "the body is no object")
        return document

    def discard(self) -> None:
        """Read the body and forget it."""
        rest = self.length
        while rest and (chunk := self.body.read(min(rest, _CHUNK))):
            rest -= len(chunk)


class TrackerError(Exception):
    """The request cannot be carried out; the client gets the status, the code and the message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def document(self) -> dict[str, Any]:
        return {"error_code": self.code, "message": self.message}


class RunPrefixes:
    """Prefixes the metrics of all runs of a program but the first of rank 0, so that runs do not mix in a curve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefixes: dict[str, str] = {}
        self._first: dict[Reporter, str] = {}
        self._names: set[tuple[Reporter, str]] = set()

    def prefix(self, reporter: Reporter, run_id: str, name: str) -> str:
        """Return the prefix of a run, which stays the same.

        Raises:
            TrackerError: The program has too many runs.
        """
        with self._lock:
            known = self._prefixes.get(run_id)
            if known is not None:
                return known
            if len(self._prefixes) >= MAX_RUNS:
                raise TrackerError(400, "INVALID_STATE", f"a program may have at most {MAX_RUNS} runs")
            first = self._first.setdefault(reporter, run_id)
            of_rank = f"rank-{reporter.rank}/" if reporter.rank else ""
            self._prefixes[run_id] = of_rank + ("" if first == run_id else f"{self._own_name(reporter, name)}/")
            return self._prefixes[run_id]

    def _own_name(self, reporter: Reporter, name: str) -> str:
        """Return the name of a run, with a number if an earlier run of the execution has the name."""
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        own = next(one for one in itertools.chain([name], numbered) if (reporter, one) not in self._names)
        self._names.add((reporter, own))
        return own


def _decompress(content: bytes, limit: int) -> bytes:
    """Return the content of a gzip stream.

    Raises:
        ValueError: It has more than `limit` bytes.
    """
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    text = stream.decompress(content, limit)
    if stream.unconsumed_tail:
        raise ValueError(f"more than {limit} bytes")
    return text
