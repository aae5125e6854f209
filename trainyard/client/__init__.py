"""The Python client, synchronous and asynchronous: every call of the API, typed, with one error tree."""

from trainyard.client.asynchronous import AsyncClient
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
    TrainyardError,
    WaitTimeoutError,
)
from trainyard.client.handles import AsyncJobHandle, JobHandle
from trainyard.client.requests import LogChunk
from trainyard.client.stream import StreamEvent
from trainyard.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "AuthenticationError",
    "Client",
    "ConflictError",
    "ConnectionFailedError",
    "InvalidRequestError",
    "JobHandle",
    "LogChunk",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitedError",
    "ServerError",
    "SettingError",
    "StreamEvent",
    "TrainyardError",
    "WaitTimeoutError",
]
