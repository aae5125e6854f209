"""Routes of the sign-in by munge and by codes, and of the users that belong to Unix accounts."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from service.api.dependencies import AdminDep, AppStateDep, NowDep, UserDep, get_caller
from service.api.idempotency import UnsupportedKey, reject_key
from service.api.json_body import JsonRoute
from service.api.middleware.authentication import address_key
from service.api.query_params import refuse_unknown
from service.api.routes.tokens import token_resource
from service.audit.log import ANONYMOUS, set_audit_action, set_audit_change
from service.auth.sign_in_codes import create_code, exchange_program_code
from service.auth.unix_users import link
from service.core.errors import PermissionDeniedError
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.access import NewTokenResource, UnixUserResource
from trainyard.contract.wire.sign_in import NonceResource, ProgramCodeRequest, SignInCodeResource, SignInRequest


async def check_query(request: Request) -> None:
    """Check the query, as authentication does on other routes."""
    refuse_unknown(request)


router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute, dependencies=[Depends(check_query)])


@router.post("/sign-in/nonces", status_code=201, operation_id="create_sign_in_nonce")
def create_nonce(app_state: AppStateDep, now: NowDep) -> NonceResource:
    """Create a nonce for a sign-in by munge from this address, within a minute. No token is needed."""
    nonce, expires_at = app_state.munge_sign_in.create_nonce(address_key(), now)
    return NonceResource(nonce=nonce, expires_at=expires_at)


@router.post("/sign-in/munge", status_code=201, operation_id="sign_in_with_munge")
def sign_in_with_munge(
    app_state: AppStateDep, now: NowDep, body: SignInRequest, idempotency_key: UnsupportedKey = None
) -> NewTokenResource:
    """Create a token of the Unix account that made the credential. No token is needed."""
    reject_key(idempotency_key)
    set_audit_action("sign_in_with_munge")
    token, secret = app_state.munge_sign_in.sign_in(body, address_key(), now)
    return NewTokenResource(**token_resource(app_state, token).model_dump(), token=secret)


@router.post("/sign-in/codes", status_code=201, operation_id="create_sign_in_code")
def create_sign_in_code(
    request: Request, app_state: AppStateDep, user: UserDep, now: NowDep, idempotency_key: UnsupportedKey = None
) -> SignInCodeResource:
    """Create a code that signs a browser in as the user of this token, once, within a minute.

    A browser session cannot create a code.
    """
    reject_key(idempotency_key)
    if get_caller(request).secret is not None:
        # Else a script that got into a page could take along a session that outlives the page's session.
        raise PermissionDeniedError(
            "a code for a sign-in needs an API token, not a browser session", code="token_required"
        )
    code, expires_at = create_code(app_state.database, user.id, now)
    return SignInCodeResource(code=code, expires_at=expires_at)


@router.post("/sign-in/tokens", status_code=201, operation_id="exchange_sign_in_code")
def exchange_code(
    app_state: AppStateDep, now: NowDep, body: ProgramCodeRequest, idempotency_key: UnsupportedKey = None
) -> NewTokenResource:
    """Exchange the code that a browser shows after a sign-in for its token. No token is needed."""
    reject_key(idempotency_key)
    set_audit_change("exchange_sign_in_code", ANONYMOUS)
    token, secret = exchange_program_code(app_state.database, body.code, now)
    return NewTokenResource(**token_resource(app_state, token).model_dump(), token=secret)


@router.put("/unix-users/{user_name}", operation_id="link_unix_user")
def link_unix_user(
    app_state: AppStateDep,
    _admin: AdminDep,
    now: NowDep,
    user_name: Annotated[
        str, Path(max_length=64, pattern=USER_NAME_PATTERN, description="Name of the user and of the Unix account.")
    ],
) -> UnixUserResource:
    """Let the Unix account of this name sign in as the user of this name, with its jobs and secrets."""
    row = link(app_state.database, app_state.accounts, user_name, now)
    return UnixUserResource(name=row.name, uid=row.uid, created_at=row.created_at)
