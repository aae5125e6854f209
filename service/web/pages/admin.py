"""The pages of administrators: tokens and the audit log. Plugins add further pages."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import ID_OF_AUDIT, ID_OF_TOKEN, AppStateDep, NowDep, check_after
from service.api.json_body import SlotRoute
from service.api.routes import tokens
from service.db.paging import PageRequest
from service.web.dependencies import PagesDep, VisitorDep
from service.web.rendering import Pages, Visitor
from trainyard.contract.wire.access import TokenResource

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

MAX_ROWS = 200
"""Maximum number of tokens, and of a plugin's resources, on a page."""
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
        return administrators_only(pages, visitor)
    check_after(after, ID_OF_TOKEN)
    page = tokens.list_all(app_state, visitor.user, PageRequest(limit=MAX_ROWS, after=after, descending=True))
    return render_admin_page(
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
    since: Literal["", "hour", "day", "week", "month"] = "",
    after: After = None,
) -> HTMLResponse:
    """Return the audit entries, newest first; filters and pages are in the address."""
    if visitor.user.role != "admin":
        return administrators_only(pages, visitor)
    check_after(after, ID_OF_AUDIT)
    page = tokens.list_audit(
        app_state,
        visitor.user,
        PageRequest(limit=_AUDIT_PAGE_SIZE, after=after, descending=True),
        actor=actor or None,
        action=action or None,
        target=target or None,
        outcome=outcome or None,
        created_after=now - PERIODS[since] if since else None,
        created_before=None,
    )
    values = {"actor": actor, "action": action, "target": target, "outcome": outcome, "since": since}
    filters = {name: value for name, value in values.items() if value}
    older = urlencode({**filters, "after": page.last_id}) if page.has_more else ""
    return render_admin_page(
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


def render_admin_page(pages: Pages, template: str, visitor: Visitor, **context: Any) -> HTMLResponse:
    """Return a page of this section; its template extends `admin.html`."""
    return pages.render(template, visitor, section="/admin", **context)


def administrators_only(pages: Pages, visitor: Visitor) -> HTMLResponse:
    """Return the page that users of other roles get."""
    subjects = ", ".join(tab.label for tab in pages.admin_tabs[:-1]).capitalize()
    return pages.render(
        "error.html",
        visitor,
        status=403,
        title="For administrators",
        message=f"{subjects} and the audit are for administrators; your role is {visitor.user.role}. "
        "Ask an administrator for a token with that role.",
    )
