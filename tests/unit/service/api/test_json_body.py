"""Routes run in the thread slots of their caller, and large bodies are validated in them too."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from pydantic import AfterValidator, BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.json_body import JsonRoute
from service.core.thread_slots import ThreadSlots, set_thread_slots

_VALIDATED_BY: list[int] = []


def _record(text: str) -> str:
    _VALIDATED_BY.append(threading.get_ident())
    return text


class Document(BaseModel):
    text: Annotated[str, AfterValidator(_record)]


class _Caller:
    """Sets the slots of a caller, as authentication does."""

    def __init__(self, app: ASGIApp, slots: ThreadSlots):
        self._app, self._slots = app, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            set_thread_slots(self._slots, "ada")
        await self._app(scope, receive, send)


class _Peak:
    """The largest number of calls at once."""

    def __init__(self) -> None:
        self.running, self.peak, self.lock = 0, 0, threading.Lock()
        self.both = threading.Event()

    def call(self) -> None:
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
            if self.running == 2:
                self.both.set()
        self.both.wait(5)
        with self.lock:
            self.running -= 1


_PEAK = _Peak()


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    router, app = APIRouter(route_class=JsonRoute), FastAPI()

    @router.post("/documents")
    async def add(body: Document) -> dict[str, Any]:
        return {"loop": threading.get_ident(), "length": len(body.text)}

    @router.get("/documents")
    def read() -> None:
        _PEAK.call()

    app.include_router(router)
    app.add_middleware(_Caller, slots=ThreadSlots(each=2, total=3))
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize(("length", "is_inline"), [(10, True), (9000, False)])
def test_large_body_is_validated_off_the_event_loop(client: TestClient, length: int, is_inline: bool) -> None:
    _VALIDATED_BY.clear()
    response = client.post("/documents", json={"text": "x" * length}).json()
    assert response["length"] == length
    assert [thread == response["loop"] for thread in _VALIDATED_BY] == [is_inline]


def test_invalid_large_body_names_the_field(client: TestClient) -> None:
    small = client.post("/documents", json={"text": 1}).json()["detail"]
    large = client.post("/documents", json={"text": 1, "other": "x" * 9000}).json()["detail"]
    assert small[0]["loc"] == large[0]["loc"] == ["body", "text"]


def test_requests_of_one_caller_use_its_share_of_threads(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: client.get("/documents"), range(8)))
    assert {response.status_code for response in responses} == {200}
    assert _PEAK.peak == 2
