"""The audit log: an entry for every change that a user requests, written here for all routes.

The middleware makes a `RequestContext` for each request, authentication adds the caller, and the first transaction
that the request commits includes the entry. A request that commits nothing gets its entry before the response starts.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog
from sqlalchemy.orm import Session

from service.core.errors import UnavailableError
from service.db.engine import Database
from service.db.models import AuditEntry

log = structlog.get_logger("audit")

SERVICE = "service"
"""The actor of changes that the service makes by itself."""
ANONYMOUS = "anonymous"

_CHANGE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_READ_ONLY_ACTIONS = frozenset({"make_plan", "plan_data"})
"""Operations that store nothing, whatever their method."""
_AUTH_FAILURE_WINDOW = timedelta(seconds=60)
_MAX_ADDRESSES = 20
"""Maximum number of addresses in an entry about failed authentications."""
_MAX_COUNTED_ADDRESSES = 1000
_REFUSAL_WINDOW = timedelta(seconds=60)
_MAX_REFUSAL_WINDOW = timedelta(hours=1)
"""While refusals of a kind continue, each summary stands for twice the time of the last summary, up to this. A kind is
counted until none has come for this long: else a client that repeats each request once a minute would add an entry each
time."""
_MAX_COUNTED_REFUSALS = 4000
"""Maximum number of kinds of refusals that are counted at once; further kinds are counted together."""
_OTHER_REFUSALS = "other_refusals"

_MAX_REFUSALS_OF_TOKEN = 100
"""Maximum number of kinds of refusals of a token; beyond that, details do not distinguish them."""

RefusalKey = tuple[str | None, str, int, str]
"""The id of the token, the action, the HTTP status and the details."""


@dataclass
class _Refusals:
    """Refused requests of a kind. The first has an entry of its own; the others are counted."""

    last: AuditEntry
    started_at: datetime
    window: timedelta = _REFUSAL_WINDOW
    """The time after which the counted refusals get a summary."""
    count: int = 0


@dataclass
class RequestContext:
    """A request, and the content of its audit entry."""

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
    """Facts that an administrator should know even if the request changes nothing."""

    @property
    def is_change(self) -> bool:
        return self.actor is not None and self.method in _CHANGE_METHODS and self.action not in _READ_ONLY_ACTIONS


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


def set_audit_change(action: str, actor: str) -> None:
    """Have the current request get an entry as a change does, whatever its method: browsers come by GET."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.method, context.action, context.actor = "POST", action, actor[:128]


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
        self._auth_failures: Counter[str] = Counter()
        self._auth_failures_flushed_at = datetime.min.replace(tzinfo=clock().tzinfo)
        self._refusals: dict[RefusalKey, _Refusals] = {}
        self._lock = threading.Lock()

    def add_entry(self, session: Session) -> None:
        """Add the current request's entry to the transaction that is about to commit, once for each request."""
        context = CURRENT_REQUEST.get()
        if context is not None and context.is_change and not context.recorded:
            session.add(self._entry(context, "done", None))
            context.recorded = True

    def needs_entry(self, context: RequestContext, status: int) -> bool:
        """Whether `record_response` has something to write for this response status."""
        return status == 401 or _is_unrecorded(context, status)

    def record_response(self, context: RequestContext, status: int) -> None:
        """Write the entry that no transaction included. Never raises: the response must be sent."""
        if status == 401:
            self._count_auth_failure(context.address)
        if not _is_unrecorded(context, status):
            return
        outcome: Literal["done", "refused", "failed"] = (
            "done" if status < 400 else "refused" if status < 500 else "failed"
        )
        entry = self._entry(context, outcome, status if status >= 400 else None)
        context.recorded = True
        if status < 400 and context.is_change:
            self._write([entry])
        else:
            self._write([*self._ended_refusals(), *self._count_refusal(entry, status)])

    def flush(self) -> None:
        """Write the summaries of refused requests and of failed authentications whose time is over."""
        if ended := self._ended_refusals():
            self._write(ended)
        self._flush_auth_failures()

    def _count_refusal(self, entry: AuditEntry, status: int) -> list[AuditEntry]:
        """Return the entry if it is the first of its kind; else count it."""
        with self._lock:
            detail = str(entry.detail) if entry.detail and self._may_distinguish(entry.token_id) else ""
            key: RefusalKey = (entry.token_id, entry.action, status, detail)
            if key not in self._refusals and len(self._refusals) >= _MAX_COUNTED_REFUSALS:
                key, entry = (None, _OTHER_REFUSALS, 0, ""), _other_refusal(entry)
            known = self._refusals.get(key)
            if known is not None:
                known.count += 1
                known.last = entry
                return []
            self._refusals[key] = _Refusals(entry, entry.created_at)
            return [entry]

    def _may_distinguish(self, token_id: str | None) -> bool:
        """Whether further refusals of a token are distinguished by their details."""
        return sum(key[0] == token_id for key in self._refusals) < _MAX_REFUSALS_OF_TOKEN

    def _ended_refusals(self) -> list[AuditEntry]:
        """Return a summary for each kind of refusal that was counted and whose time is over."""
        summaries = []
        with self._lock:
            now = self._clock()
            for key, refusals in list(self._refusals.items()):
                if now - refusals.started_at < refusals.window:
                    continue
                if refusals.count:
                    summaries.append(_summary(refusals))
                    refusals.window, refusals.count = min(2 * refusals.window, _MAX_REFUSAL_WINDOW), 0
                elif now - refusals.last.created_at >= _MAX_REFUSAL_WINDOW:
                    del self._refusals[key]
                refusals.started_at = now
        return summaries

    def _flush_auth_failures(self) -> None:
        with self._lock:
            now = self._clock()
            if not self._auth_failures or now - self._auth_failures_flushed_at < _AUTH_FAILURE_WINDOW:
                return
            failures, self._auth_failures, self._auth_failures_flushed_at = self._auth_failures, Counter(), now
        detail = {"count": failures.total(), "addresses": dict(failures.most_common(_MAX_ADDRESSES))}
        entry = AuditEntry(
            created_at=now, actor=ANONYMOUS, action="authenticate", outcome="refused", status=401, detail=detail
        )
        self._write([entry])

    def _count_auth_failure(self, address: str) -> None:
        with self._lock:
            known = address in self._auth_failures or len(self._auth_failures) < _MAX_COUNTED_ADDRESSES
            self._auth_failures[address if known else "others"] += 1
        self._flush_auth_failures()

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

    def _write(self, entries: Sequence[AuditEntry]) -> None:
        if not entries:
            return
        try:
            with self._database.write() as session:
                session.add_all(entries)
        except UnavailableError as error:
            for entry in entries:
                log.error("audit entry lost", action=entry.action, actor=entry.actor, error=error.message)


def _summary(refusals: _Refusals) -> AuditEntry:
    """Return the last entry of its kind, with the number of requests for which it stands."""
    entry = refusals.last
    return _copy(entry, detail={**entry.detail, "count": refusals.count})


def _other_refusal(entry: AuditEntry) -> AuditEntry:
    """Return an entry for refusals of any token and action."""
    others = {"actor": ANONYMOUS, "action": _OTHER_REFUSALS, "detail": {}}
    return _copy(entry, **others, token_id=None, role=None, target=None, status=None)


def _copy(entry: AuditEntry, **changes: Any) -> AuditEntry:
    names = set(AuditEntry.__table__.columns.keys()) - {"pk"}
    return AuditEntry(**{name: getattr(entry, name) for name in names} | changes)


def _is_unrecorded(context: RequestContext, status: int) -> bool:
    """Whether the request needs an entry that no transaction included."""
    has_detail = bool(context.detail) and context.actor is not None and not context.recorded
    return has_detail or (context.is_change and not (context.recorded and status < 400))
