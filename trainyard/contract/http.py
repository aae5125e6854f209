"""HTTP between a service and its workers and clients: proxies, trusted authorities, and who answered."""

import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import httpx

# The public interface applies these rules to requests alone, and does not return the proxy.
from httpx._utils import URLPattern, get_environment_proxies
from pydantic import ValidationError

from trainyard.contract.local_paths import is_loopback
from trainyard.contract.wire.pages import ErrorEnvelope

log = logging.getLogger(__name__)

API_HEADER = "x-trainyard-api"
"""Every response of a service has this header. A response without it may be from a proxy, a sign-in page or another
program."""
API_VERSION = "1"
_WAYS = "trainyard.ways"
"""The request extension that holds the way of the request and the alternative."""

_CAUSES: Mapping[int, str] = {
    400: "a proxy refuses the request; does the URL say https where the proxy expects http, or the reverse?",
    401: "a proxy wants a sign-in of its own, from which /v1 must be excluded",
    403: "a proxy or firewall refuses the request",
    404: "another program answers there, or a proxy does not pass this path on; a service below a path of its host "
    "needs the path in the URL, such as https://portal.example.org/trainyard",
    405: "another program answers there, or a proxy does not pass this method on",
    407: "a proxy wants a sign-in of its own; NO_PROXY can name the service",
    408: "a proxy has not received the request in time",
    413: "a proxy limits the size of requests (nginx: client_max_body_size)",
    429: "a proxy limits the number of requests",
    431: "a proxy limits the size of headers",
    500: "a proxy has failed",
    502: "a proxy does not reach the service; is it running?",
    503: "a proxy has no service to which it can pass the request; is it running?",
    504: "a proxy has not received an answer of the service in time",
}


def has_api_header(response: httpx.Response) -> bool:
    """Return whether the service made the response, and not a proxy: only the service adds this header."""
    return API_HEADER in response.headers


def error_envelope(response: httpx.Response) -> ErrorEnvelope | None:
    """Return the error envelope of a response whose body has been read; None if the response is not from a service."""
    try:
        return ErrorEnvelope.model_validate(json.loads(response.content))
    except (ValueError, ValidationError, RecursionError):
        return None


def describe_foreign(response: httpx.Response) -> str:
    """Return a sentence about a response that no service sent, with its likely cause."""
    status, location = response.status_code, response.headers.get("location")
    server = response.headers.get("server")
    who = f"something other than Trainyard (Server: {server[:60]})" if server else "something other than Trainyard"
    cause = _CAUSES.get(status, "a proxy, or another program, answers there")
    if status < 300:
        cause = "another program, or the sign-in page of a network, answers there"
    elif status < 400:
        cause = f"it redirects to {location[:200]}" if location else "it redirects"
    url = response.request.url.copy_with(userinfo=None, query=None)
    return f"{url}{describe_way(response)} was answered by {who} with {status}: {cause}"


def describe_way(source: httpx.Response | Exception) -> str:
    """Return the proxy of a request, and why the other way had failed, to be added to the URL; empty without a
    proxy."""
    try:
        request = source.request if isinstance(source, httpx.Response | httpx.HTTPError) else None
    except RuntimeError:
        request = None
    if request is None or _WAYS not in request.extensions:
        return ""
    way, other = request.extensions[_WAYS]
    return f" {way.name} ({other.name}: {other.failure})" if other.failure else f" {way.name}"


def trust(url: str) -> ssl.SSLContext:
    """Return a TLS context for a service.

    It trusts the authorities in `SSL_CERT_FILE` or `SSL_CERT_DIR` if set, else the public authorities. It also trusts
    the authorities of this machine, where a site may have installed its own. For a URL without TLS it reads none.
    """
    if not url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def describe_tls_error(error: Exception) -> str | None:
    """Return the TLS problem of a connection, and the hint; None for other errors."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        named = [f"{name}={os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
        trusted = " and ".join(named) or "the public ones"
        return (
            f"its certificate is not trusted ({text}); the trusted authorities are {trusted} and those of this "
            "machine: name the file of the service's authority in SSL_CERT_FILE, for jobs in the service's setting "
            "TRAINYARD_WORKER_CA_FILE"
        )
    if "ssl" in text.lower():
        return f"{text}; should the URL start with http://?"
    return None


@dataclass
class _Way:
    """How requests go to the service."""

    proxy: httpx.Proxy | None
    failure: str = ""
    """Why the last request on it failed; empty after a response of the service."""

    @property
    def name(self) -> str:
        return f"by the proxy {self.proxy.url}" if self.proxy else "directly"


class _Ways:
    """The way of the next request: the proxy that the environment names for the service, or none.

    A way stays as long as the service itself answers on it. A request that fails is not repeated here.
    """

    def __init__(self, url: str, *, is_local: bool) -> None:
        proxy = None if is_local else _environment_proxy(httpx.URL(url))
        self.all = (_Way(proxy), _Way(None)) if proxy else (_Way(None),)
        self._next = 0

    def choose(self, request: httpx.Request) -> int:
        """Return the index of the way of a request, which then carries it for messages."""
        chosen = self._next
        if len(self.all) > 1:
            request.extensions[_WAYS] = self.all[chosen], self.all[1 - chosen]
        return chosen

    @contextmanager
    def watch(self, index: int) -> Iterator[None]:
        """Leave the way at a failure of the connection."""
        try:
            yield
        except httpx.TransportError as error:
            self._leave(index, str(error) or type(error).__name__)
            raise

    def record(self, index: int, response: httpx.Response) -> httpx.Response:
        """Keep or leave the way by who answered, and return the response, whose body is watched too."""
        if has_api_header(response):
            self._next, self.all[index].failure = index, ""
        else:
            self._leave(index, f"something other than Trainyard answered with {response.status_code}")
        response.stream = _Body(response.stream, partial(self.watch, index))
        return response

    def _leave(self, index: int, failure: str) -> None:
        self.all[index].failure = failure
        # Several requests that fail on the same way leave it once.
        if self._next == index:
            self._next = (index + 1) % len(self.all)


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, stream: Any, watch: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream = stream
        self._watch = watch

    def __iter__(self) -> Iterator[bytes]:
        with self._watch():
            yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._watch():
            async for part in self._stream:
                yield part

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


class ServiceTransport(httpx.BaseTransport):
    """The connections to a service.

    Args:
        url: base URL of the service; at a loopback address it is reached directly.
        is_local: whether the service is on this machine, whatever its address.
    """

    def __init__(self, url: str, *, is_local: bool = False) -> None:
        self._ways, verify = _Ways(url, is_local=is_local), trust(url)
        self._transports = [httpx.HTTPTransport(verify=verify, proxy=way.proxy) for way in self._ways.all]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        index = self._ways.choose(request)
        with self._ways.watch(index):
            response = self._transports[index].handle_request(request)
        return self._ways.record(index, response)

    def close(self) -> None:
        for transport in self._transports:
            transport.close()


class AsyncServiceTransport(httpx.AsyncBaseTransport):
    """The same for asynchronous clients."""

    def __init__(self, url: str, *, is_local: bool = False) -> None:
        self._ways, verify = _Ways(url, is_local=is_local), trust(url)
        self._transports = [httpx.AsyncHTTPTransport(verify=verify, proxy=way.proxy) for way in self._ways.all]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index = self._ways.choose(request)
        with self._ways.watch(index):
            response = await self._transports[index].handle_async_request(request)
        return self._ways.record(index, response)

    async def aclose(self) -> None:
        for transport in self._transports:
            await transport.aclose()


def _environment_proxy(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy of the environment for a URL, as httpx chooses it; None without a usable proxy."""
    if is_loopback(url.host):
        return None
    try:
        named = get_environment_proxies()
        matching = [pattern for pattern in sorted(map(URLPattern, named)) if pattern.matches(url)]
        if not matching or not (address := named[matching[0].pattern]):
            return None
        proxy = httpx.Proxy(address, ssl_context=trust(address) if address.startswith("https:") else None)
    except (ValueError, httpx.InvalidURL):
        log.warning("HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY is malformed; requests to %s go directly", url.host)
        return None
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        log.warning("the proxy %s needs the package socksio; requests to %s go directly", proxy.url, url.host)
        return None
    return proxy
