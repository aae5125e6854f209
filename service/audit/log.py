"""The audit log: one entry for every change that a user requests, written here for all routes.

The middleware makes a `RequestContext` for each request, authentication adds the caller, and the first transaction
that the request commits includes the entry. A request that commits nothing gets its entry before the response starts.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog
from sqlalchemy.orm import Session

from service.audit.repository import AuditRepository
from service.core.errors import UnavailableError
from service.db.engine import Database
from service.db.models import AuditEntry

log = structlog.get_logger("audit")

SERVICE = "service"
"""The actor of changes that the service makes by itself."""
ANONYMOUS = "anonymous"

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_READ_ONLY_ACTIONS = frozenset({"make_plan"})
"""Operations that store nothing, whatever their method."""
_FAILURE_WINDOW = timedelta(seconds=60)
_MAX_ADDRESSES = 20
"""Addresses that one entry about failed authentications lists."""
_MAX_COUNTED_ADDRESSES = 1000


@dataclass
class RequestContext:
    """One request, and what its audit entry would contain."""

    request_id: str
    address: str
    method: str
    actor: str | None = None
    token_id: str | None = None
    role: str | None = None
    action: str = ""
    target: str | None = None
    recorded: bool = False
    """Whether a transaction of the request has included the entry."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What an administrator should know even if the request changes nothing."""

    @property
    def is_change(self) -> bool:
        return self.actor is not None and self.method in _CHANGING and self.action not in _READ_ONLY_ACTIONS


CURRENT_REQUEST: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def set_audit_target(target: str) -> None:
    """Set the target of the current request's entry where the path does not have it, such as a new id."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.target = target


def set_audit_action(action: str) -> None:
    """Set the action of the current request's entry where it is not the route's operation id."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.action = action


def add_audit_detail(**detail: Any) -> None:
    """Add details to the current request, which then gets an entry even if it changes nothing."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.detail.update(detail)


class AuditLog:
    """Writes audit entries."""

    def __init__(self, database: Database, clock: Callable[[], datetime]):
        self._database = database
        self._clock = clock
        self._failures: Counter[str] = Counter()
        self._flushed_at = datetime.min.replace(tzinfo=clock().tzinfo)
        self._lock = threading.Lock()

    def add_entry(self, session: Session) -> None:
        """Add the current request's entry to the transaction that is about to commit, once for each request."""
        context = CURRENT_REQUEST.get()
        if context is not None and context.is_change and not context.recorded:
            AuditRepository(session).add(self._entry(context, "done", None))
            context.recorded = True

    def needs_entry(self, context: RequestContext, status: int) -> bool:
        """Whether `record_response` has something to write for this response status."""
        return status == 401 or _is_unrecorded(context, status)

    def record_response(self, context: RequestContext, status: int) -> None:
        """Write the entry that no transaction included. Never raises: the response must be sent."""
        if status == 401:
            self._count_failure(context.address)
        if not _is_unrecorded(context, status):
            return
        outcome: Literal["done", "refused", "failed"] = (
            "done" if status < 400 else "refused" if status < 500 else "failed"
        )
        entry = self._entry(context, outcome, status if status >= 400 else None)
        context.recorded = True
        self._write(entry)

    def flush(self) -> None:
        """Write one entry for all failed authentications since the last one, at most once a minute."""
        with self._lock:
            now = self._clock()
            if not self._failures or now - self._flushed_at < _FAILURE_WINDOW:
                return
            failures, self._failures, self._flushed_at = self._failures, Counter(), now
        detail = {"count": failures.total(), "addresses": dict(failures.most_common(_MAX_ADDRESSES))}
        entry = AuditEntry(
            created_at=now, actor=ANONYMOUS, action="authenticate", outcome="refused", status=401, detail=detail
        )
        self._write(entry)

    def _count_failure(self, address: str) -> None:
        with self._lock:
            known = address in self._failures or len(self._failures) < _MAX_COUNTED_ADDRESSES
            self._failures[address if known else "others"] += 1
        self.flush()

    def _entry(self, context: RequestContext, outcome: str, status: int | None) -> AuditEntry:
        return AuditEntry(
            created_at=self._clock(),
            actor=context.actor,
            token_id=context.token_id,
            role=context.role,
            action=context.action,
            target=context.target[:256] if context.target else None,
            address=context.address[:64],
            request_id=context.request_id,
            outcome=outcome,
            status=status,
            detail=context.detail,
        )

    def _write(self, entry: AuditEntry) -> None:
        try:
            with self._database.write() as session:
                AuditRepository(session).add(entry)
        except UnavailableError as error:
            log.error("audit entry lost", action=entry.action, actor=entry.actor, error=error.message)


def _is_unrecorded(context: RequestContext, status: int) -> bool:
    """Whether the request needs an entry that no transaction included."""
    has_detail = bool(context.detail) and context.actor is not None and not context.recorded
    return has_detail or (context.is_change and not (context.recorded and status < 400))
