"""Routes of API tokens and of the audit log."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from service.api.dependencies import (
    AdminDep,
    AppState,
    AppStateDep,
    AuditWindowDep,
    NowDep,
    QueryTimestamp,
    TokenWindowDep,
    UserDep,
)
from service.api.idempotency import UnsupportedKey, reject_key
from service.api.json_body import JsonRoute, SlotRoute
from service.audit.repository import AuditFilter, AuditRepository
from service.auth.repository import TokenRepository
from service.auth.token_service import issue, revoke, revoke_own
from service.core.resources import resource_of
from service.db.models import AuditEntry, Token
from service.jobs.schemas import page_of
from service.projects.service import Projects
from trainyard.contract.wire.access import AuditResource, NewTokenResource, TokenRequest, TokenResource
from trainyard.contract.wire.pages import Page

router = APIRouter(prefix="/v1/tokens", tags=["access"], route_class=JsonRoute)
audit_router = APIRouter(prefix="/v1/audit", tags=["access"], route_class=SlotRoute)

TokenId = Annotated[str, Path(pattern=r"^[0-9a-f]{8,16}$", description="Id of the token (not a secret).")]


@router.post("", status_code=201, operation_id="create_token")
def create(
    app_state: AppStateDep, admin: AdminDep, now: NowDep, body: TokenRequest, idempotency_key: UnsupportedKey = None
) -> NewTokenResource:
    """Create a token. `token` in the response is its secret, which is shown only once."""
    reject_key(idempotency_key)
    if body.project is not None:
        name = Projects(app_state.database).require_created(body.project)
        body = body.model_copy(update={"project": name})
    token, secret = issue(app_state.database, admin, body, now)
    return NewTokenResource(**token_resource(app_state, token).model_dump(), token=secret)


@router.get("", operation_id="list_tokens")
def list_all(app_state: AppStateDep, _admin: AdminDep, window: TokenWindowDep) -> Page[TokenResource]:
    """List all tokens without their secrets, including expired and revoked tokens."""
    with app_state.database.read() as session:
        rows, more = TokenRepository(session).page(after=window.after, limit=window.limit, descending=window.descending)
    return page_of(rows, more, lambda row: token_resource(app_state, row), lambda token: token.id)


@router.get("/self", operation_id="get_own_token")
def get_own(app_state: AppStateDep, user: UserDep) -> TokenResource:
    """Get the token of this request."""
    with app_state.database.read() as session:
        row = TokenRepository(session).require(user.id)
    return token_resource(app_state, row)


@router.delete("/self", status_code=204, operation_id="revoke_own_token")
def delete_own(app_state: AppStateDep, user: UserDep, now: NowDep) -> None:
    """Revoke the token of this request, if it is of a sign-in by munge."""
    revoke_own(app_state.database, user, now)


@router.delete("/{token_id}", status_code=204, operation_id="revoke_token")
def delete(app_state: AppStateDep, _admin: AdminDep, now: NowDep, token_id: TokenId) -> None:
    """Revoke a token, with immediate effect."""
    revoke(app_state.database, token_id, now)


@audit_router.get("", operation_id="list_audit")
def list_audit(
    app_state: AppStateDep,
    _admin: AdminDep,
    window: AuditWindowDep,
    actor: Annotated[str | None, Query(max_length=128, description="Who made the request.")] = None,
    action: Annotated[str | None, Query(max_length=64, description="Operation id.", examples=["cancel_job"])] = None,
    target: Annotated[str | None, Query(max_length=256, description="For example a job id.")] = None,
    outcome: Annotated[Literal["done", "refused", "failed"] | None, Query(description="Result of the request.")] = None,
    created_after: Annotated[QueryTimestamp | None, Query(description="At this time or later, RFC 3339.")] = None,
    created_before: Annotated[QueryTimestamp | None, Query(description="Before this time.")] = None,
) -> Page[AuditResource]:
    """List audit entries, newest first: who changed what, when, from which address, and the outcome."""
    after = int(window.after.removeprefix("aud_")) if window.after else None
    matching = AuditFilter(actor, action, target, outcome, created_after, created_before)
    with app_state.database.read() as session:
        rows, more = AuditRepository(session).page(
            matching, after=after, limit=window.limit, descending=window.descending
        )
    return page_of(rows, more, _audit_resource, lambda entry: f"aud_{entry.pk}")


def token_resource(app_state: AppState, token: Token) -> TokenResource:
    return resource_of(
        TokenResource, token, may_run_code=token.may_run_code or token.role in app_state.settings.code_roles
    )


def _audit_resource(entry: AuditEntry) -> AuditResource:
    return resource_of(AuditResource, entry, id=f"aud_{entry.pk}")
