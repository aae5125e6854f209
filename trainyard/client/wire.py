"""A request of the API as a value, and what all of them are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from trainyard.client.errors import TrainyardError, not_trainyard
from trainyard.client.ids import segment
from trainyard.contract.base import wire_time
from trainyard.contract.wire.pages import Page

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

PAGE_SIZE = 100
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Request(Generic[T]):
    """Harmless to repeat, but for few: reads, wishes about a job, and submissions, which carry a key."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    repeatable: bool = True
    """Else it is sent again only where the service says that it did nothing."""
    most: int | None = None
    """Of a list: how many items in all are wanted."""

    def is_done(self, error: TrainyardError, failures: int) -> bool:
        """Whether an earlier one of these tries did it, whose answer was lost: what was to be deleted is gone."""
        return self.method == "DELETE" and error.status == 404 and failures > 1

    def read(self, response: httpx.Response) -> T:
        """The answer's value.

        Raises:
            ServerError: what answered is not a Trainyard service.
        """
        try:
            return self.parse(response)
        except (ValidationError, ValueError, KeyError):
            raise not_trainyard(response) from None


def following(request: Request[Page[T]], page: Page[T]) -> Request[Page[T]] | None:
    """The request of the next page, if there is one."""
    most = None if request.most is None else request.most - len(page.data)
    if not page.has_more or page.last_id is None or not page.data or (most is not None and most <= 0):
        return None
    return replace(request, params={**request.params, "after": page.last_id}, most=most)


def page(path: str, kind: type[M], limit: int | None = None, **params: Any) -> Request[Page[M]]:
    """A list, of which `limit` bounds how many items there are in all."""
    size = min(limit or PAGE_SIZE, PAGE_SIZE)
    parse = model(Page[kind])  # type: ignore[valid-type]
    return Request("GET", path, parse, given(limit=size, **params), most=limit)


def whole(path: str, kind: type[M]) -> Request[Page[M]]:
    """A list that comes in one piece."""
    return Request("GET", path, model(Page[kind]))  # type: ignore[valid-type]


def given(**params: Any) -> dict[str, Any]:
    """Those that are not left out."""
    return {key: value for key, value in params.items() if value is not None and value != []}


def time_text(moment: datetime | str) -> str:
    """A moment as it is sent; of a text the service says whether it is one."""
    return wire_time(moment) if isinstance(moment, datetime) else moment


def several(values: str | Sequence[str]) -> list[str]:
    """What was given as one text, or as several."""
    return [values] if isinstance(values, str) else list(values)


def model(kind: type[M]) -> Callable[[httpx.Response], M]:
    """How an answer of one kind is read."""
    return lambda response: kind.model_validate_json(response.content)


def job_path(job_id: str, *rest: str) -> str:
    """Of a job, or of what lies below it."""
    return "/".join(("/v1/jobs", segment(job_id, "job"), *rest))
