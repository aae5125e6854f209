"""The pages of administrators: tokens, webhooks, and the audit of changes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppStateDep, NowDep
from service.api.routes import tokens as access
from service.api.routes import webhooks
from service.core.errors import InvalidRequestError
from service.db.paging import PageRequest
from service.web.pages.jobs import PagesDep, VisitorDep
from service.web.rendering import Pages, Visitor
from trainyard.contract.wire.access import TokenResource
from trainyard.contract.wire.jobs import JobStatus

router = APIRouter(include_in_schema=False)

_LONG = 200
_AUDIT_PAGE = 50
SINCE: Mapping[str, timedelta] = MappingProxyType(
    {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}
)

After = Annotated[str | None, Query(max_length=64)]


@router.get("/admin")
def show_tokens(
    services: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep, after: After = None
) -> HTMLResponse:
    """Tokens: who has one, until when, and a form for another."""
    if visitor.user.role != "admin":
        return _refuse(pages, visitor, now)
    page = access.list_all(services, visitor.user, PageRequest(limit=_LONG, after=after, descending=True))
    return _show(
        pages,
        "admin_tokens.html",
        visitor,
        now,
        tokens=[(token, state_of(token, now)) for token in page.data],
        own=visitor.user.id,
        older=f"/admin?after={page.last_id}" if page.has_more else "",
    )


def state_of(token: TokenResource, now: datetime) -> Literal["active", "expired", "revoked"]:
    """Whether it opens anything."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "active"


@router.get("/admin/webhooks")
def show_webhooks(services: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep) -> HTMLResponse:
    """Webhooks of everyone; a script brings what each was told last."""
    if visitor.user.role != "admin":
        return _refuse(pages, visitor, now)
    page = webhooks.list_all(services, visitor.user, PageRequest(limit=_LONG, descending=True))
    return _show(pages, "admin_webhooks.html", visitor, now, webhooks=page.data, statuses=get_args(JobStatus))


@router.get("/admin/audit")
def show_audit(
    services: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    actor: Annotated[str, Query(max_length=128)] = "",
    action: Annotated[str, Query(max_length=64)] = "",
    target: Annotated[str, Query(max_length=256)] = "",
    outcome: Literal["", "done", "refused", "failed"] = "",
    since: str = "",
    after: After = None,
) -> HTMLResponse:
    """Who changed what, newest first; filters and pages are in the address."""
    if visitor.user.role != "admin":
        return _refuse(pages, visitor, now)
    if after is not None and not after.removeprefix("aud_").isdecimal():
        raise InvalidRequestError(f"{after!r} is not an id of this list", param="after")
    page = access.list_audit(
        services,
        visitor.user,
        PageRequest(limit=_AUDIT_PAGE, after=after, descending=True),
        actor=actor or None,
        action=action or None,
        target=target or None,
        outcome=outcome or None,
        created_after=now - SINCE[since] if since in SINCE else None,
        created_before=None,
    )
    values = {"actor": actor, "action": action, "target": target, "outcome": outcome, "since": since}
    filters = {name: value for name, value in values.items() if value}
    older = urlencode({**filters, "after": page.last_id}) if page.has_more else ""
    return _show(
        pages,
        "admin_audit.html",
        visitor,
        now,
        entries=page.data,
        filters=values,
        filtered=bool(filters),
        first=after is None,
        newest=f"/admin/audit?{urlencode(filters)}",
        older=f"/admin/audit?{older}" if older else "",
        sinces=tuple(SINCE),
    )


def _show(pages: Pages, template: str, visitor: Visitor, now: datetime, **context: Any) -> HTMLResponse:
    return pages.show(template, visitor, now, here="/admin", **context)


def _refuse(pages: Pages, visitor: Visitor, now: datetime) -> HTMLResponse:
    return pages.show(
        "problem.html",
        visitor,
        now,
        status=403,
        title="For administrators",
        message=f"Tokens, webhooks and the audit are for administrators; your role is {visitor.user.role}. "
        "Whoever gave you your token can give you another one.",
    )
