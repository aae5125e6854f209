"""What every endpoint may ask for, and nothing else: the parts of the process, and who is calling."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from fastapi import Path as PathParam
from pydantic import AwareDatetime, BeforeValidator

from service.api.query_params import refuse_unknown
from service.api.rate_limits import Rate, RateLimiter
from service.audit.log import CURRENT_REQUEST, AuditLog
from service.auth.principals import Principal, authenticate
from service.auth.sessions import CSRF_HEADER, Cookie, authenticate_session, require_csrf
from service.core.clock import Clock
from service.core.errors import InvalidRequestError, PermissionDeniedError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.observability import ServiceMetrics
from service.core.settings import Settings
from service.db.engine import Database
from service.db.paging import PageRequest
from service.jobs.quota import UserQuotas
from service.metrics.downsampling.downsampler import Downsampler
from service.metrics.ingest.batch_queue import IngestQueue
from service.metrics.ingest.worker_tokens import WorkerTokenCache
from service.metrics.ingest.writer import PointWriter
from service.planner.model_reader import Models
from service.streaming.broadcaster import Broadcaster
from service.streaming.sources import GlobalSource
from service.webhooks.service import Resolver, resolve_host
from trainyard.contract.base import reject_number
from trainyard.contract.layout import RunLayout

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def _ignore() -> None:
    """Nobody is waiting for a hint."""


@dataclass
class Services:
    """The parts of one process."""

    settings: Settings
    database: Database
    clock: Clock
    notify_reconciler: Callable[[], None] = field(default=_ignore)
    """Tells the reconciler that there is something to do; losing it only costs time."""
    notify_cleanup: Callable[[], None] = field(default=_ignore)
    """Tells the housekeeper that there is something to remove."""
    notify_webhooks: Callable[[], None] = field(default=_ignore)
    """Tells who sends to webhooks that there is a message."""
    resolver: Resolver = resolve_host
    """Of the names of webhooks' hosts."""
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    """What this process counts."""
    models: Models = field(default_factory=Models)
    """Reads what model folders say of themselves."""
    failpoint: Failpoint = no_failpoint
    """Where tests end the process."""

    def __post_init__(self) -> None:
        self.downsampler = Downsampler(self.database)
        self.ingest_queue = IngestQueue(
            PointWriter(self.database, self.downsampler.on_commit),
            lambda: self.clock(),
            limit_bytes=self.settings.ingest_limit,
        )
        self.global_source = GlobalSource(self.database, self.settings.runs, lambda: self.clock())
        self.broadcaster = Broadcaster(limit=self.settings.max_streams)
        self.database.committed += [self.global_source.on_commit, self.broadcaster.on_commit]
        self.worker_tokens = WorkerTokenCache(partial(authenticate, self.database))
        self.audit_log = AuditLog(self.database, lambda: self.clock())
        self.database.before_commit = self.audit_log.add_entry
        rates = self.settings
        self.rate_limiter = RateLimiter(Rate(rates.rate_per_second, rates.rate_burst))
        self.worker_rate_limiter = RateLimiter(Rate(rates.worker_rate_per_second, rates.worker_rate_burst))

    @property
    def cookie(self) -> Cookie:
        """Of browsers that are signed in."""
        return Cookie(secure=self.settings.service_url.startswith("https:"))

    @property
    def quotas(self) -> UserQuotas:
        """The quotas of one user."""
        return UserQuotas(
            gpus=self.settings.max_gpus_per_user,
            admin_gpus=self.settings.max_gpus_per_admin,
            queued=self.settings.max_queued_per_user,
            disk_bytes=self.settings.quota_bytes,
        )

    def run(self, job_id: str) -> RunLayout:
        return RunLayout(self.settings.runs / job_id)

    @property
    def run_root(self) -> RunLayout:
        return RunLayout(self.settings.runs)

    @property
    def state(self) -> Path:
        return self.settings.state


# What only looks something up is `async`: a plain function would go through a thread and back.
async def get_services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]


async def get_now(services: ServicesDep) -> datetime:
    return services.clock()


NowDep = Annotated[datetime, Depends(get_now)]


def get_user(request: Request, services: ServicesDep, now: NowDep) -> Principal:
    """A person or program with an API token, or a browser that is signed in; a worker's token is for worker routes
    only."""
    authorization, secret = request.headers.get("authorization"), services.cookie.read(request.headers.get("cookie"))
    if authorization is None and secret is not None:
        principal = authenticate_session(services.database, secret, now)
    else:
        principal, secret = authenticate(services.database, authorization, now), None
    sign(request, principal)
    if secret is not None and request.method not in SAFE_METHODS:
        require_csrf(secret, request.headers.get(CSRF_HEADER))
    if principal.kind != "user":
        raise PermissionDeniedError("a worker's token opens only the routes of its own attempt")
    request.state.principal = principal.name
    refuse_unknown(request)
    return principal


def sign(request: Request, principal: Principal) -> None:
    """Say to the audit who asks, and for what."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.actor, context.token_id, context.role = principal.name, principal.id, principal.role
        context.action = getattr(request.scope.get("route"), "operation_id", None) or request.method
        context.target = "/".join(str(value) for value in request.path_params.values()) or None


UserDep = Annotated[Principal, Depends(get_user)]


def get_admin(user: UserDep) -> Principal:
    """An administrator."""
    if user.role != "admin":
        raise PermissionDeniedError("only an administrator may do this", code="admin_required")
    return user


AdminDep = Annotated[Principal, Depends(get_admin)]

AttemptId = Annotated[str, PathParam(pattern=r"^[0-9a-f]{16}$")]


def get_worker(request: Request, services: ServicesDep, now: NowDep, aid: AttemptId) -> Principal:
    """The worker of the attempt in the path, and no other."""
    principal = authenticate(services.database, request.headers.get("authorization"), now)
    if principal.kind != "worker" or principal.id != aid:
        raise PermissionDeniedError("this token is not the one of this attempt's worker")
    request.state.principal = principal.name
    refuse_unknown(request)
    return principal


WorkerDep = Annotated[Principal, Depends(get_worker)]


def after_query(pattern: str, *, max_length: int = 64) -> Any:
    """The place in a list from which a page goes on, with the form that its ids have. The form is only announced:
    pydantic's words about a pattern help nobody."""
    told = "The `last_id` of the page before."
    return Query(max_length=max_length, description=told, json_schema_extra={"pattern": pattern})


def window_of(pattern: str) -> Callable[..., Awaitable[PageRequest]]:
    """The dependency of a list whose ids have this form."""

    async def get_window(
        limit: Annotated[int, Query(ge=1, le=200, description="How many at most.")] = 20,
        after: Annotated[str | None, after_query(pattern)] = None,
        order: Annotated[Literal["asc", "desc"], Query(description="By time of creation.")] = "desc",
    ) -> PageRequest:
        if after is not None and not re.fullmatch(pattern, after):
            raise InvalidRequestError(f"{after!r} is not an id of this list", param="after")
        return PageRequest(limit=limit, after=after, descending=order == "desc")

    return get_window


JobWindowDep = Annotated[PageRequest, Depends(window_of(r"^job_[0-9a-z]{26}$"))]
EventWindowDep = Annotated[PageRequest, Depends(window_of(r"^evt_[0-9]{1,18}$"))]
TokenWindowDep = Annotated[PageRequest, Depends(window_of(r"^[0-9a-f]{8,16}$"))]
AuditWindowDep = Annotated[PageRequest, Depends(window_of(r"^aud_[0-9]{1,18}$"))]
WebhookWindowDep = Annotated[PageRequest, Depends(window_of(r"^whk_[0-9a-z]{26}$"))]
SweepWindowDep = Annotated[PageRequest, Depends(window_of(r"^swp_[0-9a-z]{26}$"))]
DeliveryWindowDep = Annotated[PageRequest, Depends(window_of(r"^dlv_[0-9a-z]{26}$"))]

_BLANK_ZONE = re.compile(r"(:[0-9.]+) ([0-9]{2}:?[0-9]{2})$")


def _with_plus(value: Any) -> Any:
    """A `+` that stands unescaped in a query means a blank; before the zone of a moment nothing else can."""
    return _BLANK_ZONE.sub(r"\1+\2", value) if isinstance(value, str) else value


QueryTimestamp = Annotated[AwareDatetime, BeforeValidator(reject_number), BeforeValidator(_with_plus)]
"""RFC 3339, with a zone."""

AttemptNumber = Annotated[int | None, Query(ge=1, le=1_000_000, description="The newest if left out.")]
