"""A request of the API as a value: its content, and the parser of its response. Pure functions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import BaseModel, ValidationError

from trainyard.client.errors import InvalidRequestError, NotFoundError, TrainyardError, require_own, unreadable
from trainyard.contract.base import wire_time
from trainyard.contract.wire.pages import Page

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

PAGE_SIZE = 100
JSON = {"Content-Type": "application/json"}
EVENT_STREAM = {"Accept": "text/event-stream", "Cache-Control": "no-store"}

_ANY_ID = r"[A-Za-z0-9_-]{1,128}"
_ID_PATTERNS = {
    "sweep": r"swp_[0-9a-z]{26}",
    "webhook": r"whk_[0-9a-z]{26}",
    "checkpoint": r"ckpt_[0-9a-z]{26}",
    "token": r"[0-9a-f]{8,16}",
    "file": r"file_[0-9a-z]{26}",
    "model": r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    "alias": r"[a-z][a-z0-9_-]{0,49}",
    "user": r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}",
}


@dataclass(frozen=True)
class Request(Generic[T]):
    """One request. Most can be repeated safely: reads, changes of the desired state, and submissions with a key."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    repeatable: bool = True
    """False: it is sent again only after a response which states that nothing was changed."""
    timeout: float | None = None
    """Seconds that the response may take. None: the client's timeout."""
    max_items: int | None = None
    """Lists only: the number of items over all pages. None: all."""

    def already_deleted(self, error: TrainyardError, failures: int) -> bool:
        """Return whether a 404 means that an earlier try, whose response was lost, has deleted the resource."""
        return self.method == "DELETE" and isinstance(error, NotFoundError) and failures > 1

    def read(self, response: httpx.Response) -> T:
        """Parse a successful response.

        Raises:
            ForeignAnswerError: the response is not from a Trainyard service.
            ServerError: the response is from another release.
        """
        try:
            return self.parse(response)
        except (ValidationError, ValueError, KeyError):
            raise unreadable(response) from None


def next_page(request: Request[Page[T]], page: Page[T]) -> Request[Page[T]] | None:
    """Return the request of the next page. None: there is none, or `max_items` is reached."""
    left = None if request.max_items is None else request.max_items - len(page.data)
    # A page can lack the rows that the service could not show.
    is_last = not page.has_more or page.last_id in (None, request.params.get("after"))
    if is_last or (left is not None and left <= 0):
        return None
    return replace(request, params={**request.params, "after": page.last_id}, max_items=left)


def paged(path: str, kind: type[M], limit: int | None = None, **params: Any) -> Request[Page[M]]:
    """Return the request of a list's first page; `limit` bounds the number of items over all pages."""
    size = min(limit or PAGE_SIZE, PAGE_SIZE)
    parse = model(Page[kind])  # type: ignore[valid-type]
    return Request("GET", path, parse, without_none(limit=size, **params), max_items=limit)


def unpaged(path: str, kind: type[M], **params: Any) -> Request[Page[M]]:
    """Return the request of a list that the service sends as a single page."""
    return Request("GET", path, model(Page[kind]), without_none(**params))  # type: ignore[valid-type]


def without_none(**params: Any) -> dict[str, Any]:
    """Return the parameters that are neither None nor an empty list."""
    return {key: value for key, value in params.items() if value is not None and value != []}


def format_time(time: datetime | str) -> str:
    """Return a time in RFC 3339. A string is sent unchanged, for the service to validate."""
    return wire_time(time) if isinstance(time, datetime) else time


def as_list(values: str | Sequence[str]) -> list[str]:
    """Return a string, or a sequence of strings, as a list."""
    return [values] if isinstance(values, str) else list(values)


def model(kind: type[M]) -> Callable[[httpx.Response], M]:
    """Return a parser of responses that hold a resource of that kind."""
    return lambda response: kind.model_validate_json(response.content)


def no_result(response: httpx.Response) -> None:
    """Parse a response without a body."""
    require_own(response)


def whole_body(response: httpx.Response) -> bytes:
    """Return a body that is not JSON."""
    require_own(response)
    return response.content


def whole_text(response: httpx.Response) -> str:
    """Return a body of text."""
    require_own(response)
    return response.text


def force_param(force: bool) -> dict[str, str]:
    """Return the query parameters of a submission."""
    return {"force": "true"} if force else {}


def idempotency_key(key: str | None) -> str:
    """Return the caller's key, or a new key. Raises InvalidRequestError: the key cannot be sent in a header."""
    key = str(uuid4()) if key is None else key
    if not (key and key.isascii() and key.isprintable()):
        raise InvalidRequestError("must be printable ASCII, and not empty", param="Idempotency-Key")
    return key


def segment(text: str, kind: str) -> str:
    """Return an id or name as a segment of a path. It is validated here for a clearer error than the service's 422.

    Raises:
        NotFoundError: no resource of that kind can have this id.
    """
    if not re.fullmatch(_ID_PATTERNS.get(kind, _ANY_ID), text):
        raise NotFoundError(f"there is no {kind} {text!r}", code=f"{kind}_not_found")
    return text


def job_path(job_id: str, *rest: str) -> str:
    """Return the path of a job, or of a resource below it."""
    return "/".join(("/v1/jobs", segment(job_id, "job"), *rest))


def file_path(job_id: str, folder: str, path: str) -> str:
    """Return the path of a file of a checkpoint (`checkpoints/<id>`) or of the `export`."""
    return job_path(job_id, *folder.split("/"), "files", *map(quote, path.split("/")))


@dataclass(frozen=True)
class LogChunk:
    """A range of a log's bytes. The next chunk starts at `next_offset`."""

    data: bytes
    offset: int
    next_offset: int

    @property
    def text(self) -> str:
        """The decoded bytes. A character that crosses the boundary of two chunks is replaced in both."""
        return self.data.decode(errors="replace")

    @classmethod
    def from_response(cls, response: httpx.Response) -> "LogChunk":
        """Parse the bytes and their offsets, which are headers."""
        headers = response.headers
        return cls(response.content, int(headers["x-trainyard-offset"]), int(headers["x-trainyard-next-offset"]))
