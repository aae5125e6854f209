"""A method of both clients in one line: what it sends is a function; the client in hand says how it is waited for."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from inspect import Signature, signature
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from trainyard.client import curves, requests
from trainyard.client.wire import Request
from trainyard.contract.wire.pages import Page

P = ParamSpec("P")
T = TypeVar("T")


class Sends(Protocol):
    """The synchronous client, as far as a call needs it."""

    def _send(self, request: Request[T]) -> T: ...

    def _items(self, request: Request[Page[T]]) -> Iterator[T]: ...


class SendsAsync(Protocol):
    """The asynchronous one."""

    def _send(self, request: Request[T]) -> Coroutine[Any, Any, T]: ...

    def _items(self, request: Request[Page[T]]) -> AsyncIterator[T]: ...


class Described:
    """What `help` and completion tell of a method: its name, and the words and parameters of the request it makes."""

    def __init__(self, make: Callable[..., Any], *, filled_in: int = 0) -> None:
        self.__doc__ = make.__doc__
        asked = list(signature(make).parameters.values())[filled_in:]
        self._signature = Signature(asked)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _described(self, call: Callable[..., Any]) -> Callable[..., Any]:
        call.__name__ = call.__qualname__ = self._name
        call.__doc__ = self.__doc__
        call.__dict__["__signature__"] = self._signature
        return call


class Call(Described, Generic[P, T]):
    """One request; its answer, or with the asynchronous client an awaitable of it."""

    def __init__(self, make: Callable[P, Request[T]]) -> None:
        super().__init__(make)
        self._make = make

    @overload
    def __get__(self, client: Sends, kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: SendsAsync, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: client._send(self._make(*args, **kwargs)))


class Pages(Described, Generic[P, T]):
    """The items of all pages of a list, fetched as they are needed."""

    def __init__(self, make: Callable[P, Request[Page[T]]]) -> None:
        super().__init__(make)
        self._make = make

    @overload
    def __get__(self, client: Sends, kind: type) -> Callable[P, Iterator[T]]: ...

    @overload
    def __get__(self, client: SendsAsync, kind: type) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: client._items(self._make(*args, **kwargs)))


class Items(Described, Generic[P, T]):
    """All items of a list that is never long, as a list."""

    def __init__(self, make: Callable[P, Request[Page[T]]]) -> None:
        super().__init__(make)
        self._make = make

    @overload
    def __get__(self, client: Sends, kind: type) -> Callable[P, list[T]]: ...

    @overload
    def __get__(self, client: SendsAsync, kind: type) -> Callable[P, Coroutine[Any, Any, list[T]]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: collected(client._items(self._make(*args, **kwargs))))


def collected(items: Any) -> Any:
    """A list of them, or an awaitable of one."""
    if not isinstance(items, AsyncIterator):
        return list(items)

    async def collect() -> list[Any]:
        return [item async for item in items]

    return collect()


class SharedCalls:
    """The calls that are one request and nothing else."""

    plan = Call(requests.plan)
    ask = Call(requests.ask)
    cancel = Call(requests.cancel)
    pause = Call(requests.pause)
    resume = Call(requests.resume)
    retry = Call(requests.retry)
    profile = Call(requests.profile)
    events = Pages(requests.events)
    attempts = Items(requests.attempts)
    metrics = Call(curves.metrics)
    metrics_of = Call(curves.metrics_of)
    metrics_csv = Call(curves.metrics_csv)
    metrics_csv_of = Call(curves.metrics_csv_of)
    points = Pages(curves.points)
    logs = Call(requests.logs)
    files = Items(requests.files)
    artifacts = Items(requests.artifacts)
    checkpoints = Items(requests.checkpoints)
    delete = Call(requests.delete)
    resolve = Call(requests.resolve)
    delete_checkpoint = Call(requests.delete_checkpoint)
    checkpoint = Call(requests.checkpoint)
    usage = Call(requests.usage)
    script = Call(requests.script)
    cluster = Call(requests.cluster)
    doctor = Call(requests.doctor)
    template = Call(requests.template)
    templates = Items(requests.templates)
    submit_sweep = Call(requests.submit_sweep)
    sweep = Call(requests.sweep)
    sweeps = Pages(requests.sweeps)
    cancel_sweep = Call(requests.cancel_sweep)
