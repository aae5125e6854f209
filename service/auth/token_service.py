"""Tokens made and taken back by administrators. A secret is in the answer that makes it, and nowhere else."""

from datetime import datetime, timedelta

from service.audit.log import ANONYMOUS, SERVICE, set_audit_target
from service.auth.principals import ADMIN, Principal
from service.auth.repository import TokenRepository
from service.auth.tokens import hash_token, new_user_token, parse_token
from service.core.errors import ConflictError, InvalidRequestError
from service.db.engine import Database
from service.db.models import Token
from trainyard.contract.wire.access import TokenRequest

_RESERVED = (ADMIN, SERVICE, ANONYMOUS)


def issue(database: Database, principal: Principal, wanted: TokenRequest, now: datetime) -> tuple[Token, str]:
    """A new token and its secret.

    Raises:
        InvalidRequestError: the name is not to be had.
    """
    if wanted.name in _RESERVED:
        message = f"`{wanted.name}` is a name of the service's own; take that of a person or program"
        raise InvalidRequestError(message, param="name", code="reserved_name")
    text = new_user_token()
    parsed = parse_token(text)
    assert parsed is not None
    token = Token(
        id=parsed.id,
        hash=hash_token(text),
        name=wanted.name,
        role=wanted.role,
        may_run_code=wanted.may_run_code,
        created_by=principal.name,
        created_at=now,
        expires_at=now + timedelta(days=wanted.expires_in_days) if wanted.expires_in_days else None,
    )
    with database.write() as session:
        TokenRepository(session).add(token)
        set_audit_target(token.id)
    return token, text


def revoke(database: Database, token_id: str, now: datetime) -> None:
    """From now on it opens nothing. Asking again changes nothing.

    Raises:
        ConflictError: nobody could administer the service any more.
    """
    with database.write() as session:
        repository = TokenRepository(session)
        token = repository.known(token_id)
        if token.revoked_at is not None:
            return
        live = token.expires_at is None or token.expires_at > now
        if token.role == "admin" and live and repository.live_administrators(now) == 1:
            raise ConflictError("this is the last administrator's token; make another one first", code="last_admin")
        token.revoked_at = now
