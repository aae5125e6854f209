"""The Python client, synchronous and asynchronous: typed calls for the whole API."""

from trainyard.client._async.client import AsyncClient
from trainyard.client._async.handle import AsyncJobHandle
from trainyard.client._sync.client import Client
from trainyard.client._sync.handle import JobHandle
from trainyard.client.errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
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
