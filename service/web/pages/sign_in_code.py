"""Signing in with a code of `trainyard open`, which the browser has from the fragment of its address.

A visit never uses a code up, so that previews of links and prefetching do not. Nor does a code alone sign anybody in: a
stranger could send the address of a code of their own, and receive everything that the visitor then does under their
name. So the visitor is shown whose code it is, and confirms.
"""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from service.api.dependencies import AppStateDep, Caller, NowDep, set_audit_caller
from service.api.json_body import SlotRoute
from service.api.middleware.authentication import address_key
from service.auth.principals import Principal
from service.auth.sessions import sign_out
from service.auth.sign_in_codes import principal_of_code, sign_in_with_code
from service.core.errors import AuthenticationError
from service.core.thread_slots import run_in_thread_slot
from service.web.dependencies import PagesDep
from service.web.pages.sign_in import read_form
from service.web.rendering import Pages
from service.web.security import PAGE_HEADERS, safe_redirect

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

_PROBLEM = (
    "This link was used before, or is older than a minute. Make a new one with `trainyard open`, or sign in here."
)


async def get_present_caller(request: Request) -> Caller | None:
    """Return the session that the browser has already; None without a session."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return caller if caller is not None and caller.secret is not None else None


PresentCallerDep = Annotated[Caller | None, Depends(get_present_caller)]


@router.post("/sign-in/code", operation_id="check_sign_in_code")
async def check_code(
    request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep, present: PresentCallerDep
) -> Response:
    """Show whose code it is, and ask. A browser with a session of that user needs no code."""
    form = await read_form(request)
    code, target = form.get("code", ""), safe_redirect(form.get("next", ""))
    try:
        principal = await app_state.sign_in_slots.run(address_key(), principal_of_code, app_state.database, code, now)
    except AuthenticationError:
        return _refused(pages, target)
    if present is not None and _same_user(present.principal, principal):
        return RedirectResponse(target, status_code=303, headers=PAGE_HEADERS)
    current = present.principal.name if present is not None else ""
    return pages.render("sign_in_code.html", None, code=code, next=target, user=principal, current=current)


@router.post("/sign-in/with-code", operation_id="sign_in_with_code")
async def use_code(
    request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep, present: PresentCallerDep
) -> Response:
    """Use a code up, and replace the browser's session."""
    form = await read_form(request)
    code, target = form.get("code", ""), safe_redirect(form.get("next", ""))
    lifetime = timedelta(hours=app_state.settings.session_hours)
    try:
        principal, secret = await app_state.sign_in_slots.run(
            address_key(), sign_in_with_code, app_state.database, code, lifetime, now
        )
    except AuthenticationError:
        return _refused(pages, target)
    set_audit_caller(request, principal)
    if present is not None and present.secret is not None:
        await run_in_thread_slot(sign_out, app_state.database, present.secret)
    headers = {"Set-Cookie": app_state.cookie.header(secret, int(lifetime.total_seconds()))}
    return RedirectResponse(target, status_code=303, headers={**PAGE_HEADERS, **headers})


def _refused(pages: Pages, target: str) -> Response:
    return pages.sign_in(target, status=401, field_problem=_PROBLEM)


def _same_user(one: Principal, other: Principal) -> bool:
    return (one.name, one.role, one.may_run_code) == (other.name, other.role, other.may_run_code)
