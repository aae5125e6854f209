"""One job in a program's hand: its resource, and the calls about it without its id."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from trainyard.client import curves, requests
from trainyard.client.calls import Described, Sends, SendsAsync, collected
from trainyard.client.wire import Request
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.pages import Page

P = ParamSpec("P")
T = TypeVar("T")


class Waits(Sends, Protocol):
    """The synchronous client, as far as a handle needs it."""

    def wait(self, job_id: str, timeout: float | None = None) -> JobResource: ...


class WaitsAsync(SendsAsync, Protocol):
    """The asynchronous one."""

    def wait(self, job_id: str, timeout: float | None = None) -> Coroutine[Any, Any, JobResource]: ...


class _Of(Described, Generic[P, T]):
    """A call about a job, with the handle's job filled in."""

    def __init__(self, make: Callable[Concatenate[str, P], Request[T]]) -> None:
        super().__init__(make, filled_in=1)
        self._make = make

    @overload
    def __get__(self, handle: "JobHandle", kind: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, handle: "AsyncJobHandle", kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, handle: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: handle._send(self._make(handle.id, *args, **kwargs)))


class _ItemsOf(Described, Generic[P, T]):
    """A list about a job, whole."""

    def __init__(self, make: Callable[Concatenate[str, P], Request[Page[T]]]) -> None:
        super().__init__(make, filled_in=1)
        self._make = make

    @overload
    def __get__(self, handle: "JobHandle", kind: type) -> Callable[P, list[T]]: ...

    @overload
    def __get__(self, handle: "AsyncJobHandle", kind: type) -> Callable[P, Coroutine[Any, Any, list[T]]]: ...

    def __get__(self, handle: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: collected(handle._items(self._make(handle.id, *args, **kwargs))))


class JobCalls:
    """What both handles have. Every answer that is the job replaces `resource`."""

    resource: JobResource
    """As it was last heard of."""

    refresh = _Of(requests.job)
    cancel = _Of(requests.cancel)
    pause = _Of(requests.pause)
    resume = _Of(requests.resume)
    retry = _Of(requests.retry)
    metrics = _Of(curves.metrics_table)
    logs = _Of(requests.logs)
    events = _ItemsOf(requests.events)
    checkpoints = _ItemsOf(requests.checkpoints)

    def __getattr__(self, name: str) -> Any:
        """A field of the resource: `job.status`. What is a call here is in `resource` alone: `resource.metrics`."""
        if name == "resource":
            raise AttributeError(name)
        return getattr(self.resource, name)

    @property
    def id(self) -> str:
        """The job's, as every command and route takes it."""
        return self.resource.id

    def __repr__(self) -> str:
        return f"<job {self.id}, {self.resource.status}>"

    def _heard(self, answer: T) -> T:
        if isinstance(answer, JobResource):
            self.resource = answer
        return answer


class JobHandle(JobCalls):
    """What `Client.job`, `jobs`, `submit` and `fork` give."""

    def __init__(self, client: Waits, resource: JobResource) -> None:
        self._client = client
        self.resource = resource

    def wait(self, timeout: float | None = None) -> Self:
        """Return once the job is over; see `Client.wait`."""
        self._heard(self._client.wait(self.id, timeout))
        return self

    def _send(self, request: Request[T]) -> T:
        return self._heard(self._client._send(request))

    def _items(self, request: Request[Page[T]]) -> Iterator[T]:
        return self._client._items(request)


class AsyncJobHandle(JobCalls):
    """What `AsyncClient.job`, `jobs`, `submit` and `fork` give."""

    def __init__(self, client: WaitsAsync, resource: JobResource) -> None:
        self._client = client
        self.resource = resource

    async def wait(self, timeout: float | None = None) -> Self:
        """Return once the job is over; see `Client.wait`."""
        self._heard(await self._client.wait(self.id, timeout))
        return self

    async def _send(self, request: Request[T]) -> T:
        return self._heard(await self._client._send(request))

    def _items(self, request: Request[Page[T]]) -> AsyncIterator[T]:
        return self._client._items(request)


class _Handles(Described, Generic[P]):
    """The jobs of all pages of a list, each as a handle, fetched as they are needed."""

    def __init__(self, make: Callable[P, Request[Page[JobResource]]]) -> None:
        super().__init__(make)
        self._make = make

    @overload
    def __get__(self, client: Waits, kind: type) -> Callable[P, Iterator[JobHandle]]: ...

    @overload
    def __get__(self, client: WaitsAsync, kind: type) -> Callable[P, AsyncIterator[AsyncJobHandle]]: ...

    def __get__(self, client: Any, kind: type) -> Any:
        return self._described(lambda *args, **kwargs: _held(client, client._items(self._make(*args, **kwargs))))


def _held(client: Any, resources: Any) -> Any:
    if not isinstance(resources, AsyncIterator):
        return (JobHandle(client, resource) for resource in resources)
    return (AsyncJobHandle(client, resource) async for resource in resources)


class HandleCalls:
    """The lists of both clients that give handles."""

    jobs = _Handles(requests.jobs)
