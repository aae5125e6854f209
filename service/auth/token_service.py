"""Creates and revokes API tokens. The secret is in the response that creates the token, and nowhere else."""

from datetime import datetime, timedelta

from service.audit.log import ANONYMOUS, SERVICE, set_audit_target
from service.auth.principals import ADMIN, Principal
from service.auth.repository import TokenRepository
from service.auth.tokens import new_token
from service.core.errors import ConflictError, InvalidRequestError
from service.db.engine import Database
from service.db.models import Token
from trainyard.contract.wire.access import TokenRequest

RESERVED_NAMES = (ADMIN, SERVICE, ANONYMOUS)
"""Names of no user, in lower case."""


def issue(database: Database, principal: Principal, request: TokenRequest, now: datetime) -> tuple[Token, str]:
    """Create a token; return it and its secret.

    Raises:
        InvalidRequestError: the name is reserved, or differs from another token's name only by case.
    """
    if request.name.lower() in RESERVED_NAMES:
        message = f"`{request.name}` is reserved for the service; use the name of a person or program"
        raise InvalidRequestError(message, param="name", code="reserved_name")
    token, text = new_token(
        name=request.name,
        role=request.role,
        now=now,
        may_run_code=request.may_run_code,
        created_by=principal.name,
        project=request.project,
        expires_at=now + timedelta(days=request.expires_in_days) if request.expires_in_days else None,
    )
    with database.write() as session:
        repository = TokenRepository(session)
        repository.lock_name(database, request.name)
        if similar := repository.name_with_other_case(request.name):
            message = f"differs from the existing name `{similar}` only by case; use that name or another one"
            raise InvalidRequestError(message, param="name", code="similar_name")
        session.add(token)
        set_audit_target(token.id)
    return token, text


def revoke(database: Database, token_id: str, now: datetime) -> None:
    """Revoke a token; a repeated call changes nothing.

    Raises:
        ConflictError: it is the last valid token of an administrator.
    """
    with database.write() as session:
        repository = TokenRepository(session)
        token = repository.require(token_id)
        if token.revoked_at is not None:
            return
        live = token.expires_at is None or token.expires_at > now
        if token.role == "admin" and live and repository.count_valid_admins(now) == 1:
            raise ConflictError("this is the last administrator's token; make another one first", code="last_admin")
        token.revoked_at = now


def revoke_own(database: Database, principal: Principal, now: datetime) -> None:
    """Revoke the token of a sign-in, at the request of its user.

    Raises:
        ConflictError: an administrator created the token.
    """
    with database.write() as session:
        token = TokenRepository(session).require(principal.id)
        if token.unix_uid is None and not token.is_sign_in:
            message = "only tokens of a sign-in end at their user's request; administrators revoke all others"
            raise ConflictError(message, code="not_signed_in")
        token.revoked_at = token.revoked_at or now
        set_audit_target(token.id)
