"""Signing in and out, static files, and the redirect from the root."""

from datetime import timedelta
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from service.api.dependencies import AppStateDep, NowDep, set_audit_caller
from service.api.json_body import SlotRoute
from service.api.middleware.authentication import address_key
from service.api.plugin import next_sign_out
from service.auth.sessions import require_csrf, sign_in, sign_out
from service.core.errors import AuthenticationError
from service.core.thread_slots import run_in_thread_slot
from service.web.dependencies import PagesDep, VisitorDep
from service.web.security import PAGE_HEADERS, safe_redirect

router = APIRouter(include_in_schema=False, route_class=SlotRoute)


@router.get("/")
def redirect_to_jobs() -> Response:
    return RedirectResponse("/jobs", status_code=303, headers=PAGE_HEADERS)


@router.get("/static/{group}/{name}")
def get_static_file(request: Request, pages: PagesDep, group: str, name: str) -> Response:
    """Return a script or a style; no session is needed, since the files are public."""
    return pages.static_file(group, name, gzipped="gzip" in request.headers.get("accept-encoding", ""))


@router.get("/sign-in")
def show_sign_in(pages: PagesDep, next: str = "/jobs") -> HTMLResponse:
    return pages.sign_in(safe_redirect(next))


@router.post("/sign-in", operation_id="sign_in")
async def submit_sign_in(request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep) -> Response:
    """Start a session with an API token. Failures are audited and rate-limited by address, as in the API."""
    form = await read_form(request)
    token, target = form.get("token", "").strip(), safe_redirect(form.get("next", ""))
    lifetime = timedelta(hours=app_state.settings.session_hours)
    try:
        principal, secret = await app_state.sign_in_slots.run(
            address_key(), sign_in, app_state.database, token, lifetime, now
        )
    except AuthenticationError:
        return pages.sign_in(target, status=401, field_problem="Invalid or expired token.")
    set_audit_caller(request, principal)
    headers = {"Set-Cookie": app_state.cookie.header(secret, int(lifetime.total_seconds()))}
    return RedirectResponse(target, status_code=303, headers={**PAGE_HEADERS, **headers})


@router.post("/sign-out", operation_id="sign_out")
async def submit_sign_out(request: Request, app_state: AppStateDep, pages: PagesDep, visitor: VisitorDep) -> Response:
    """End the session of the request's cookie."""
    set_audit_caller(request, visitor.user)
    require_csrf(visitor.secret, (await read_form(request)).get("csrf", ""))
    await run_in_thread_slot(sign_out, app_state.database, visitor.secret)
    cookie = app_state.cookie.header("", 0)
    if address := await next_sign_out(request.scope, app_state, visitor.user):
        # A page, because browsers apply the policy of forms (`form-action`) to redirects too.
        page = pages.render("signed_out.html", None, address=address)
        page.headers["Set-Cookie"] = cookie
        return page
    return RedirectResponse("/sign-in", status_code=303, headers={**PAGE_HEADERS, "Set-Cookie": cookie})


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, each with its first value."""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    return {name: values[0] for name, values in fields.items()}
