"""HTTP client of the worker routes, with the attempt token and retries."""

import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from trainyard.contract.http import (
    ServiceTransport,
    describe_foreign,
    describe_tls_error,
    describe_way,
    error_envelope,
    has_api_header,
)

_RETRIED = frozenset({408, 425, 429})
_REJECTED = frozenset({400, 413, 422})
TOO_LARGE = 413
_MAX_RESPONSE_BYTES = 16 * 1024 * 1024
_RESPONSE_SECONDS = 30.0
"""How long the body of a response may take. The connection's timeout applies to each part of the body."""
_UNKNOWN = frozenset({401, 404})
_UNKNOWN_PAUSE_SECONDS = 30.0
"""Pause after a response that the attempt is unknown. It is known again when the service has its own database back."""


class ServiceError(Exception):
    """A request that did not succeed."""


class UnavailableError(ServiceError):
    """No response, or a response that allows a retry: the same request may succeed later."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ForeignAnswerError(UnavailableError):
    """Something other than the service answered, such as a proxy. The response decides nothing, with any status."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.status = status


class FailedError(UnavailableError):
    """An internal error of the service, which this request may cause each time."""


class UnknownAttemptError(UnavailableError):
    """The service does not know the attempt: it has another database, or an older copy. A retry may succeed."""


class UnknownRouteError(UnknownAttemptError):
    """The service has no such route: it is of an earlier version, or a prefix is missing in the URL."""


class RejectedError(ServiceError):
    """The body is invalid: this request never succeeds, another request may."""


class RefusedError(ServiceError):
    """The service refuses this worker for good: its attempt has ended, or another attempt is current."""

    def __init__(self, message: str, status: int, document: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.document = document


class Backoff:
    """Exponential backoff with full jitter: a random pause below a limit that doubles."""

    def __init__(
        self, *, first: float = 0.25, ceiling: float = 30.0, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first = first
        self._ceiling = ceiling
        self._uniform = uniform
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def pause(self, retry_after: float | None = None) -> float:
        """Return the seconds to wait after another failure: at least the service's Retry-After."""
        limit = min(self._ceiling, self._first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return max(self._uniform(0.0, limit), min(retry_after or 0.0, 60.0))


class ServiceClient:
    """The connection of one attempt. Not thread-safe."""

    def __init__(
        self,
        service_url: str,
        attempt_id: str,
        token: str,
        *,
        timeout: float = 5.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._sleep = sleep
        self._now = now
        self._uniform = uniform
        self._probe_url = f"{service_url.rstrip('/')}/livez"
        self._http = httpx.Client(
            base_url=f"{service_url.rstrip('/')}/v1/attempts/{attempt_id}/",
            # A small compressed response from something else than the service could fill the memory.
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            timeout=timeout,
            transport=transport or ServiceTransport(service_url),
            trust_env=False,
        )

    def post(self, route: str, body: str | bytes, *, params: dict[str, str | int] | None = None) -> dict[str, Any]:
        """Send one request.

        Raises:
            UnavailableError: A retry may succeed.
            ForeignAnswerError: The same; something other than the service answered.
            FailedError: The same, but this request may be the cause.
            RejectedError: The body is invalid.
            RefusedError: The service refuses this worker for good.
        """
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        try:
            with self._http.stream(
                "POST", route, content=body, params=params, headers={"Content-Type": kind}
            ) as stream:
                response = self._receive(stream)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            reason = describe_tls_error(error) or f"{type(error).__name__}: {error}"
            raise UnavailableError(f"the service was not reached{describe_way(error)}: {reason}") from None
        return _read(response)

    def is_reached(self) -> bool:
        """Return whether the service itself answers now: then a foreign response concerned only its own request."""
        # A second request takes the other way: through the proxy, or directly.
        return self._responds() or self._responds()

    def _responds(self) -> bool:
        try:
            with self._http.stream("GET", self._probe_url) as response:
                return has_api_header(response)
        except (httpx.RequestError, httpx.InvalidURL):
            return False

    def _receive(self, stream: httpx.Response) -> httpx.Response:
        """Return the response with its body.

        Raises:
            ForeignAnswerError: It is too large or too slow, or encoded, which no request accepts: a little of it can
                fill the memory.
        """
        content, deadline = bytearray(), self._now() + _RESPONSE_SECONDS
        foreign = ForeignAnswerError(describe_foreign(stream), stream.status_code)
        if stream.headers.get("content-encoding", "identity") != "identity":
            raise foreign
        for part in stream.iter_bytes():
            content += part
            if len(content) > _MAX_RESPONSE_BYTES or self._now() > deadline:
                raise foreign
        return httpx.Response(
            stream.status_code, headers=stream.headers, content=bytes(content), request=stream.request
        )

    def post_until(self, deadline: float, route: str, body: str | bytes) -> dict[str, Any]:
        """Retry with jitter until there is a response or `deadline` (of the injected clock) is near.

        Raises:
            UnavailableError: The last failure, when the time is up.
        """
        backoff = Backoff(ceiling=2.0, uniform=self._uniform)
        while True:
            try:
                return self.post(route, body)
            except UnavailableError as error:
                pause = backoff.pause(error.retry_after)
                if self._now() + pause >= deadline:
                    raise
                self._sleep(pause)

    def close(self) -> None:
        self._http.close()


def _read(response: httpx.Response) -> dict[str, Any]:
    status, retry_after = response.status_code, _seconds(response.headers.get("retry-after"))
    if not has_api_header(response) and (status < 400 or error_envelope(response) is None):
        raise ForeignAnswerError(describe_foreign(response), status, retry_after)
    message = f"{status}: {response.text[:300]}"
    document = _document(response)
    if document is None or status in _RETRIED or status // 100 == 3 or status > 500:
        raise UnavailableError(message, retry_after)
    if status < 300:
        return document
    if status == httpx.codes.INTERNAL_SERVER_ERROR:
        raise FailedError(message)
    if status in _REJECTED:
        raise RejectedError(message)
    if status in _UNKNOWN:
        error = document.get("error")
        is_route = isinstance(error, dict) and error.get("code") == "route_not_found"
        raise (UnknownRouteError if is_route else UnknownAttemptError)(message, _UNKNOWN_PAUSE_SECONDS)
    raise RefusedError(message, status, document)


def _document(response: httpx.Response) -> dict[str, Any] | None:
    """Return the body; None if it is not an object, as after a broken connection."""
    if not response.content:
        return {}
    try:
        document = response.json()
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isascii() and header.isdigit() else None
