"""The Python client, synchronous and asynchronous: typed calls for the whole API."""

from typing import TYPE_CHECKING, Any

from trainyard.client._sync.client import Client
from trainyard.client._sync.handle import JobHandle
from trainyard.client.errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    ForeignAnswerError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    ServerError,
    SettingError,
    TargetExistsError,
    TrainyardError,
    WaitTimeoutError,
)
from trainyard.client.programs import run
from trainyard.client.request import LogChunk
from trainyard.client.stream import StreamEvent
from trainyard.contract.wire.search import Choice, Condition, FloatRange, IntRange, Search

if TYPE_CHECKING:
    from trainyard.client._async.client import AsyncClient
    from trainyard.client._async.handle import AsyncJobHandle

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "AuthenticationError",
    "Choice",
    "Client",
    "Condition",
    "ConflictError",
    "ConnectionFailedError",
    "FloatRange",
    "ForeignAnswerError",
    "IntRange",
    "InvalidRequestError",
    "JobHandle",
    "LogChunk",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitedError",
    "Search",
    "ServerError",
    "SettingError",
    "StreamEvent",
    "TargetExistsError",
    "TrainyardError",
    "WaitTimeoutError",
    "run",
]


def __getattr__(name: str) -> Any:
    """Load the asynchronous client when it is first used: the command line does without it."""
    if name == "AsyncClient":
        from trainyard.client._async.client import AsyncClient

        return AsyncClient
    if name == "AsyncJobHandle":
        from trainyard.client._async.handle import AsyncJobHandle

        return AsyncJobHandle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
