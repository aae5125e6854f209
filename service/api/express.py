"""The metrics route at the connection: nearly all of what a service is asked, and the framework took most of its time.

Answered here is the plain case: a known worker, ordinary headers, a body that is a batch. Everything else, and so
nearly every refusal, is the gate's and the framework's, which know the same route. What is said about the batch after
that is the same on both ways.
"""

import asyncio
import re
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import structlog
from fastapi.exceptions import RequestValidationError

from service.api.dependencies import Services
from service.api.middleware import bucket_of, host_name, is_workers, marks, refusal, request_id
from service.api.rate_limits import Allowance
from service.api.shortcut import Exchange
from service.core.errors import ServiceError
from service.metrics.ingest.decoding import decode
from service.metrics.ingest.outcome import Outcome

ROUTE = "/v1/attempts/{aid}/metrics"
_PATH = re.compile(r"/v1/attempts/([0-9a-f]{16})/metrics")
_PLAIN = frozenset(
    b"accept accept-encoding accept-language authorization connection content-length content-type forwarded host"
    b" traceparent tracestate user-agent via x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto"
    b" x-real-ip x-request-id".split()
)
"""Headers that change nothing here, or that are looked at."""
_JSON = (b"content-type", b"application/json")


class Express:
    """A shortcut for batches of points."""

    def __init__(self, services: Services, hosts: Iterable[str]):
        self._services = services
        self._hosts = frozenset(host.lower() for host in hosts)
        self._log = structlog.get_logger("http")

    def wishes(self, scope: Any) -> bool:
        """A head with nothing in it that the gate would have to look at."""
        if scope["method"] != "POST" or scope["query_string"] or not _PATH.fullmatch(scope["path"]):
            return False
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        return (
            len(headers) == len(scope["headers"])
            and headers.keys() <= _PLAIN
            and length.isdigit()
            and int(length) <= self._services.settings.body_limit
            and host_name(headers.get(b"host", b"").decode("latin-1")) in self._hosts
            and is_workers(headers.get(b"authorization", b""))
        )

    def take(self, exchange: Exchange) -> bool:
        """Put the batch in line, if it is one and its worker was known a moment ago."""
        started, services = time.monotonic(), self._services
        headers, attempt_id = dict(exchange.scope["headers"]), exchange.scope["path"][13:29]
        authorization, now = headers[b"authorization"], services.clock()
        if not services.admission.remembers(authorization.decode("latin-1"), attempt_id, now):
            return False
        try:
            batch = decode(exchange.body, services.points.known_keys)
        except RequestValidationError:
            return False
        allowance = services.worker_buckets.take(bucket_of(authorization), now)
        if not allowance.allowed:
            return False
        about = _About(exchange, request_id(headers.get(b"x-request-id", b"")), allowance, len(batch.rows), started)
        answer = partial(self._answer, about)
        try:
            services.points.enter(attempt_id, batch, len(exchange.body), asyncio.get_running_loop(), answer)
        except ServiceError as error:
            answer(error)
        return True

    def _answer(self, about: "_About", outcome: Outcome) -> None:
        services = self._services
        if isinstance(outcome, ServiceError):
            status = outcome.status
            headers, body = refusal(outcome)
        else:
            services.metrics.ingested("points", about.points)
            status = 200
            body = b'{"accepted":%d,"duplicates":%d}' % (outcome.fresh, outcome.duplicates)
            headers = [(b"content-length", b"%d" % len(body)), _JSON]
        about.exchange.answer(status, headers + marks(about.request_id, about.allowance), body)
        services.metrics.request("POST", ROUTE, status, time.monotonic() - about.started)
        if status >= 500:
            path = about.exchange.scope["path"]
            self._log.error("request", method="POST", path=path, status=status, request_id=about.request_id)


class _About(NamedTuple):
    """A batch in line."""

    exchange: Exchange
    request_id: str
    allowance: Allowance
    points: int
    started: float
