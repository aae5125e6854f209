"""Asking the scheduler what would become of a plan: the question is a row, which the reconciler answers."""

from datetime import datetime

from service.audit.log import set_audit_action, set_audit_target
from service.auth.principals import Principal
from service.core.errors import PermissionDeniedError, TooManyRequestsError
from service.core.ids import new_id
from service.db.engine import Database
from service.db.models import StartEstimate
from service.planner.repository import AskRepository
from trainyard.contract.wire.plans import AskResource

_MOST_WAITING = 20
"""Of all people: an answer takes seconds each."""

NO_QUEUE = AskResource(
    state="answered",
    message="the local backend has no queue to ask: a job starts as soon as this machine has room for it",
)
NO_SCRIPT = AskResource(state="answered", message="there is no batch script to ask about; `warnings` has why")


def ask(database: Database, principal: Principal, script: str, now: datetime) -> AskResource:
    """Put a batch script to the scheduler.

    Raises:
        PermissionDeniedError: viewers only look.
        TooManyRequestsError: many wait for an answer already.
    """
    row = StartEstimate(id=new_id("ask", now), created_by=principal.name, created_at=now, script=script)
    set_audit_action("ask_scheduler")
    if principal.role == "viewer":
        raise PermissionDeniedError("a viewer's token can only read")
    with database.write() as session:
        asks = AskRepository(session)
        if len(asks.waiting(_MOST_WAITING)) == _MOST_WAITING:
            raise TooManyRequestsError(f"{_MOST_WAITING} questions wait for the scheduler's answer already")
        asks.add(row)
        set_audit_target(row.id)
        session.flush()
        return _resource(row)


def read(database: Database, ask_id: str) -> AskResource:
    """Raises NotFoundError: it was never asked, or answered more than an hour ago."""
    with database.read() as session:
        return _resource(AskRepository(session).get(ask_id))


def _resource(ask: StartEstimate) -> AskResource:
    waiting = ask.answered_at is None
    return AskResource(
        id=ask.id,
        state="waiting" if waiting else "answered",
        created_at=ask.created_at,
        answered_at=ask.answered_at,
        accepted=ask.accepted,
        estimated_start=ask.estimated_start,
        message=ask.message or "the scheduler is being asked",
    )
