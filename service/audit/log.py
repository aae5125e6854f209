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

from service.auth.repository import AuditRepository
from service.core.errors import UnavailableError
from service.db.access_models import AuditEntry
from service.db.engine import Database

log = structlog.get_logger("audit")

SERVICE = "service"
"""The actor of what the service does by itself."""
ANONYMOUS = "anonymous"

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NO_CHANGES = frozenset({"make_plan"})
"""Operations that store nothing, whatever their method."""
_WINDOW = timedelta(seconds=60)
_ADDRESSES = 20


@dataclass
class RequestContext:
    """One request: what an entry about it would say."""

    request_id: str
    address: str
    method: str
    actor: str | None = None
    token_id: str | None = None
    role: str | None = None
    action: str = ""
    target: str | None = None
    joined: bool = False
    """Whether a transaction of the request has taken the entry along."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What it met that an administrator should know of, though it changes nothing."""

    @property
    def is_change(self) -> bool:
        return self.actor is not None and self.method in _CHANGING and self.action not in _NO_CHANGES


CURRENT_REQUEST: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def about(target: str) -> None:
    """What the request turns out to be about, where its path does not say: the id of what it made."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.target = target


def act(action: str) -> None:
    """The request does more than its route's own name says."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.action = action


def notice(**detail: Any) -> None:
    """The request met something that belongs into the audit, whatever it is about."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.detail.update(detail)


class AuditLog:
    """Writes entries."""

    def __init__(self, database: Database, clock: Callable[[], datetime]):
        self._database = database
        self._clock = clock
        self._failures: Counter[str] = Counter()
        self._flushed = datetime.min.replace(tzinfo=clock().tzinfo)
        self._lock = threading.Lock()

    def join(self, session: Session) -> None:
        """Put the current request's entry into the transaction that is about to commit."""
        context = CURRENT_REQUEST.get()
        if context is not None and context.is_change and not context.joined:
            AuditRepository(session).add(self._entry(context, "done", None))
            context.joined = True

    def misses(self, context: RequestContext, status: int) -> bool:
        """Whether `answered` has something to do."""
        return status == 401 or _is_unwritten(context, status)

    def answered(self, context: RequestContext, status: int) -> None:
        """Write what no transaction took along. Never fails: the answer is made, and must go out."""
        if status == 401:
            self._failed(context.address)
        if not _is_unwritten(context, status):
            return
        outcome: Literal["done", "refused", "failed"] = (
            "done" if status < 400 else "refused" if status < 500 else "failed"
        )
        entry = self._entry(context, outcome, status if status >= 400 else None)
        context.joined = True
        self._write(entry)

    def flush(self) -> None:
        """Write down the failed authentications of the last minutes, all in one entry."""
        with self._lock:
            now = self._clock()
            if not self._failures or now - self._flushed < _WINDOW:
                return
            failures, self._failures, self._flushed = self._failures, Counter(), now
        detail = {"count": failures.total(), "addresses": dict(failures.most_common(_ADDRESSES))}
        entry = AuditEntry(
            created_at=now, actor=ANONYMOUS, action="authenticate", outcome="refused", status=401, detail=detail
        )
        self._write(entry)

    def _failed(self, address: str) -> None:
        with self._lock:
            if address in self._failures or len(self._failures) < 1000:
                self._failures[address] += 1
            else:
                self._failures["others"] += 1
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
            log.error("not written", action=entry.action, actor=entry.actor, error=error.message)


def _is_unwritten(context: RequestContext, status: int) -> bool:
    """Whether the request needs an entry that no transaction took along."""
    noticed = bool(context.detail) and context.actor is not None and not context.joined
    return noticed or (context.is_change and not (context.joined and status < 400))
