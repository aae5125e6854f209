"""A service behind httpx's mock transport: it answers from queues and records its requests."""

import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx

from tests.support.service_transport import service_transport
from trainyard.client import AsyncClient, Client

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]

TIME = "2026-01-02T03:04:05.000Z"


class FakeService:
    """`answers[("GET", "/v1/jobs")]` holds what comes next for a route; the last answer of a route stays."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], deque[Answer]] = defaultdict(deque)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []

    def on(self, method: str, path: str, *answers: Any) -> "FakeService":
        """Plain data is a 200."""
        kinds = (httpx.Response, Exception)
        ready = [a if isinstance(a, kinds) or callable(a) else httpx.Response(200, json=a) for a in answers]
        self.answers[method, path].extend(ready)
        return self

    def _listed(self, **fields: str) -> list[dict[str, Any]]:
        """The jobs with these fields in what the list of jobs answers, as the service's own filter would have them."""
        pages = [answer for answer in self.answers["GET", "/v1/jobs"] if isinstance(answer, httpx.Response)]
        jobs = [listed for answer in pages for listed in answer.json()["data"]]
        return [listed for listed in jobs if fields.items() <= listed.items()]

    def client(self, token: str | None = "secret", **options: Any) -> Client:
        transport = service_transport(self._answer)
        return Client("http://trainyard.test", token, transport=transport, sleep=self.slept.append, **options)

    def async_client(self) -> AsyncClient:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        return AsyncClient("http://trainyard.test", "secret", transport=service_transport(self._answer), sleep=sleep)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if "name" in request.url.params:
            return httpx.Response(200, json=page(*self._listed(name=request.url.params["name"])))
        queue = self.answers[request.method, request.url.path]
        kind, _, name = request.url.path.rpartition("/")
        if not queue and kind == "/v1/jobs" and (listed := self._listed(id=name)):
            return httpx.Response(200, json=listed[0])
        if not queue:
            return error(404, f"there is no {request.url.path}", "not_found_error", "not_found")
        answer = queue.popleft() if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


def job(job_id: str = "01JOBAAAA", **changes: Any) -> dict[str, Any]:
    return {
        "object": "job",
        "id": job_id,
        "name": "digits-ddp",
        "status": "queued",
        "status_message": "waits for the reconciler",
        "estimated_start": None,
        "desired": "run",
        "created_by": "admin",
        "created_at": TIME,
        "updated_at": TIME,
        "sequence": 0,
        "spec": {"task": "regression"},
        "run_directory": "/runs/01JOBAAAA",
        **changes,
    }


def attempt(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"id": f"at{number}", "number": number, "scheduler": "local", "created_at": TIME, **changes}


def page(*data: dict[str, Any], more: bool = False) -> dict[str, Any]:
    ids = [item.get("id") for item in data]
    return {
        "object": "list",
        "data": list(data),
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }


def error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str = "invalid",
    *,
    param: str | None = None,
    problems: list[dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    if problems is not None:
        body["problems"] = problems
    return httpx.Response(status, json=body, headers=headers)


def csv(text: str) -> httpx.Response:
    return httpx.Response(200, text=text, headers={"Content-Type": "text/csv"})


def log(data: bytes, offset: int) -> httpx.Response:
    headers = {"X-Trainyard-Offset": str(offset), "X-Trainyard-Next-Offset": str(offset + len(data))}
    return httpx.Response(200, content=data, headers=headers)


def sse(number: int | None, kind: str, data: dict[str, Any]) -> bytes:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def status(number: int, word: str, message: str = "", **changes: Any) -> bytes:
    return sse(number, "status", {"status": word, "status_message": message, **changes})


def metrics(number: int, **points: float) -> bytes:
    listed = [{"key": key.replace("__", "/"), "step": number, "value": v, "time": TIME} for key, v in points.items()]
    return sse(number, "metrics", {"execution": 1, "resumed_from_step": 0, "points": listed})


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces that may break off."""

    def __init__(self, *chunks: bytes | Exception) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def streamed(*chunks: bytes | Exception) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Chunks(*chunks))
