"""The pages of administrators: tokens, webhooks and the audit log."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppStateDep, NowDep
from service.api.json_body import SlotRoute
from service.api.routes import tokens, webhooks
from service.core.errors import InvalidRequestError
from service.db.paging import PageRequest
from service.web.dependencies import PagesDep, VisitorDep
from service.web.rendering import Pages, Visitor
from trainyard.contract.wire.access import TokenResource
from trainyard.contract.wire.jobs import JobStatus

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

_PAGE_SIZE = 200
_AUDIT_PAGE_SIZE = 50
PERIODS: Mapping[str, timedelta] = MappingProxyType(
    {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}
)

After = Annotated[str | None, Query(max_length=64)]


@router.get("/admin")
def show_tokens(
    app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep, now: NowDep, after: After = None
) -> HTMLResponse:
    """Return the list of tokens, with a form to create a token."""
    if visitor.user.role != "admin":
        return _administrators_only(pages, visitor)
    page = tokens.list_all(app_state, visitor.user, PageRequest(limit=_PAGE_SIZE, after=after, descending=True))
    return _show(
        pages,
        "admin_tokens.html",
        visitor,
        tokens=[(token, token_state(token, now)) for token in page.data],
        own=visitor.user.id,
        older=f"/admin?after={page.last_id}" if page.has_more else "",
    )


def token_state(token: TokenResource, now: datetime) -> Literal["active", "expired", "revoked"]:
    """Return whether a token is accepted, and otherwise why not."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "active"


@router.get("/admin/webhooks")
def show_webhooks(app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep) -> HTMLResponse:
    """Return the webhooks of all users; a script reads their deliveries."""
    if visitor.user.role != "admin":
        return _administrators_only(pages, visitor)
    page = webhooks.list_all(app_state, visitor.user, PageRequest(limit=_PAGE_SIZE, descending=True))
    return _show(pages, "admin_webhooks.html", visitor, webhooks=page.data, statuses=get_args(JobStatus))


@router.get("/admin/audit")
def show_audit(
    app_state: AppStateDep,
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
    """Return the audit entries, newest first; filters and pages are in the address."""
    if visitor.user.role != "admin":
        return _administrators_only(pages, visitor)
    if after is not None and not after.removeprefix("aud_").isdecimal():
        raise InvalidRequestError(f"{after!r} is not an id of this list", param="after")
    page = tokens.list_audit(
        app_state,
        visitor.user,
        PageRequest(limit=_AUDIT_PAGE_SIZE, after=after, descending=True),
        actor=actor or None,
        action=action or None,
        target=target or None,
        outcome=outcome or None,
        created_after=now - PERIODS[since] if since in PERIODS else None,
        created_before=None,
    )
    values = {"actor": actor, "action": action, "target": target, "outcome": outcome, "since": since}
    filters = {name: value for name, value in values.items() if value}
    older = urlencode({**filters, "after": page.last_id}) if page.has_more else ""
    return _show(
        pages,
        "admin_audit.html",
        visitor,
        entries=page.data,
        filters=values,
        filtered=bool(filters),
        first=after is None,
        newest=f"/admin/audit?{urlencode(filters)}",
        older=f"/admin/audit?{older}" if older else "",
        periods=tuple(PERIODS),
    )


def _show(pages: Pages, template: str, visitor: Visitor, **context: Any) -> HTMLResponse:
    return pages.render(template, visitor, section="/admin", **context)


def _administrators_only(pages: Pages, visitor: Visitor) -> HTMLResponse:
    return pages.render(
        "error.html",
        visitor,
        status=403,
        title="For administrators",
        message=f"Tokens, webhooks and the audit are for administrators; your role is {visitor.user.role}. "
        "Ask an administrator for a token with that role.",
    )
