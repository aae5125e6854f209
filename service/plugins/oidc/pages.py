"""The way of a browser to the provider and back. Failures are shown on the sign-in page."""

import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.dependencies import AppState, AppStateDep, NowDep, get_present_secret
from service.api.json_body import SlotRoute
from service.api.middleware.authentication import address_key
from service.audit.log import ANONYMOUS, add_audit_detail, set_audit_change
from service.auth.principals import Principal
from service.core.errors import RateLimitedError, ServiceError
from service.core.thread_slots import run_in_thread_slot
from service.db.models import OidcRequest
from service.plugins.oidc import sign_in
from service.plugins.oidc.errors import ProviderError, SignInFailedError, as_sentence, refusal_of
from service.plugins.oidc.id_tokens import UnknownKeyError, verify
from service.plugins.oidc.part import CALLBACK_PATH, CODE_PATH, PATH, OidcPart, part_of
from service.plugins.oidc.provider import Metadata, Tokens
from service.plugins.oidc.repository import OidcRepository
from service.plugins.oidc.sign_in import REQUEST_SECONDS, Identity, Started
from service.web.dependencies import PagesDep
from service.web.rendering import Pages
from service.web.security import PAGE_HEADERS, safe_redirect

log = structlog.get_logger("oidc")

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

_BROWSER_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_MAX_STATE, _MAX_CODE = 100, 8192
_ANSWER = ("state", "code", "error", "iss")
"""The parameters with which the provider sends a browser back."""


@router.get(PATH, operation_id="start_oidc_sign_in")
async def start(
    request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep, next: str = "/jobs"
) -> Response:
    """Send the browser to the provider. Sign-ins in several tabs share the browser's cookie."""
    return await _start(request, app_state, pages, now, safe_redirect(next))


async def _start(request: Request, app_state: AppState, pages: Pages, now: datetime, target: str) -> Response:
    """Send the browser to the provider.

    Args:
        target: The page to open after the sign-in; `CODE_PATH`: show a code instead of signing the browser in.
    """
    part = part_of(app_state)
    known = part.cookie.read(request.headers.get("cookie")) or ""
    browser = known if _BROWSER_SECRET.fullmatch(known) else secrets.token_urlsafe(32)
    try:
        _check_rate(app_state, now)
        metadata = await part.provider.metadata(now)
        started = await app_state.sign_in_slots.run(
            address_key(), sign_in.start, app_state.database, browser, target, get_present_secret(request), now
        )
    except ServiceError as error:
        return pages.sign_in(safe_redirect(target), status=error.status, problem=as_sentence(error))
    headers = {**PAGE_HEADERS, "Set-Cookie": part.cookie.header(browser, REQUEST_SECONDS)}
    return RedirectResponse(_authorization_url(part, metadata, started), status_code=303, headers=headers)


@router.get(CODE_PATH, operation_id="start_oidc_code")
async def start_code(request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep) -> Response:
    """Send the browser to the provider, and show a code for `trainyard login --browser` when it comes back.

    A session is not enough: a script that got into a page could take along a token that outlives the page.
    """
    return await _start(request, app_state, pages, now, CODE_PATH)


@router.get(CALLBACK_PATH, operation_id=sign_in.ACTION)
async def finish(request: Request, app_state: AppStateDep, pages: PagesDep, now: NowDep) -> Response:
    """Sign in the user whom the provider has sent back, in the browser that has started the sign-in."""
    part, target = part_of(app_state), "/jobs"
    try:
        _check_rate(app_state, now)
        answer = _read_answer(request)
        browser = part.cookie.read(request.headers.get("cookie"))
        row = await app_state.sign_in_slots.run(
            address_key(),
            sign_in.take,
            app_state.database,
            answer["state"],
            browser,
            app_state.settings.service_url,
            now,
        )
        target = safe_redirect(row.target)
        identity = await _identify(part, answer, row, now)
        sign_in.set_subject(identity, part.policy)
        admit = sign_in.admit_program if row.target == CODE_PATH else sign_in.admit
        secret = await app_state.sign_in_slots.run(
            address_key(), admit, app_state.database, identity, part.policy, row, part.lifetime, now
        )
    except ServiceError as error:
        set_audit_change(sign_in.ACTION, ANONYMOUS)
        add_audit_detail(reason=error.code)
        return pages.sign_in(target, status=error.status, problem=as_sentence(error))
    if row.target == CODE_PATH:
        return pages.render("oidc_code.html", None, code=secret)
    headers = {"Set-Cookie": app_state.cookie.header(secret, int(part.lifetime.total_seconds()))}
    return RedirectResponse(target, status_code=303, headers={**PAGE_HEADERS, **headers})


async def sign_out_address(app_state: AppState, user: Principal) -> str:
    """Return the address where the provider ends the session of a user; empty if the user has none there."""
    try:
        part = part_of(app_state)
        token = await run_in_thread_slot(_id_token, app_state, user.id, part.provider.issuer)
        if token is None:
            return ""
        endpoint = (await part.provider.metadata(app_state.clock())).end_session_endpoint
    except ServiceError as error:
        log.warning("the session at the provider stays", reason=error.code)
        return ""
    hint = {"id_token_hint": token} if token else {}
    parameters = {"client_id": part.provider.client_id, "post_logout_redirect_uri": part.signed_out_uri, **hint}
    return _with_query(endpoint, parameters) if endpoint else ""


def _id_token(app_state: AppState, token_id: str, issuer: str) -> str | None:
    """Return the ID token of a sign-in; None if the token does not come from a sign-in at this provider."""
    with app_state.database.read() as session:
        row = OidcRepository(session).token(token_id)
    return row.id_token if row is not None and row.issuer == issuer else None


def _check_rate(app_state: AppState, now: datetime) -> None:
    """Take a request from the limit of sign-ins of its address."""
    allowance = app_state.sign_in_rate_limiter.acquire(address_key(), now)
    if not allowance.allowed:
        raise RateLimitedError(allowance.retry_seconds)


def _authorization_url(part: OidcPart, metadata: Metadata, started: Started) -> str:
    from authlib.oauth2.rfc7636 import create_s256_code_challenge

    parameters = {
        "response_type": "code",
        "client_id": part.provider.client_id,
        "redirect_uri": part.redirect_uri,
        "scope": part.scopes,
        "state": started.state,
        "nonce": started.nonce,
        "code_challenge": create_s256_code_challenge(started.verifier),
        "code_challenge_method": "S256",
    }
    return _with_query(metadata.authorization_endpoint, parameters)


def _with_query(address: str, parameters: Mapping[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(parameters)}"


def _read_answer(request: Request) -> Mapping[str, str]:
    """Return the parameters of the provider's answer, each empty if it is missing.

    Raises:
        SignInFailedError: a parameter is repeated or too long, so that it is not an answer of the provider.
    """
    given = [(name, value) for name, value in request.query_params.multi_items() if name in _ANSWER]
    answer = {**dict.fromkeys(_ANSWER, ""), **dict(given)}
    if len(given) != len(dict(given)) or len(answer["state"]) > _MAX_STATE or len(answer["code"]) > _MAX_CODE:
        raise SignInFailedError("the provider's answer cannot be read: sign in again", code="invalid_answer")
    return answer


async def _identify(part: OidcPart, answer: Mapping[str, str], row: OidcRequest, now: datetime) -> Identity:
    """Return whom the provider's answer identifies.

    Raises:
        SignInFailedError: the provider has not signed the user in.
        ProviderError: its statements are missing or cannot be trusted.
    """
    provider = part.provider
    metadata = await provider.metadata(now)
    issuer = answer["iss"]
    if (issuer or metadata.names_itself) and not hmac.compare_digest(issuer.encode(), metadata.issuer.encode()):
        raise SignInFailedError("the answer comes from another provider: sign in again", code="other_issuer")
    if answer["error"] or not answer["code"]:
        raise refusal_of(answer["error"])
    tokens = await provider.exchange(answer["code"], row.verifier, part.redirect_uri, now)
    claims = await _verified_claims(part, metadata, tokens, row.nonce, now)
    if not part.policy.claims <= claims.keys():
        more = await provider.user_info(tokens.access_token, now)
        if more and more.get("sub") != claims["sub"]:
            raise ProviderError("the provider's statements about you differ: sign in again", code="other_subject")
        claims = {**more, **claims}
    return Identity(metadata.issuer, claims["sub"], claims, tokens.id_token)


async def _verified_claims(
    part: OidcPart, metadata: Metadata, tokens: Tokens, nonce: str, now: datetime
) -> Mapping[str, Any]:
    """Return the claims of an ID token. If its key is unknown, the provider's keys are read again, once."""
    provider = part.provider
    keys = await provider.keys(now)
    try:
        return verify(tokens, keys, metadata, client_id=provider.client_id, nonce=nonce, now=now)
    except UnknownKeyError:
        keys = await provider.keys(now, anew=True)
        return verify(tokens, keys, metadata, client_id=provider.client_id, nonce=nonce, now=now)
