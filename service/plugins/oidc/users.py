"""The users of the provider: whom an administrator links, disables and sees."""

from datetime import datetime

from service.auth.repository import TokenRepository
from service.auth.token_service import RESERVED_NAMES
from service.core.errors import InvalidRequestError, NotFoundError
from service.db.engine import Database
from service.db.models import OidcUser
from service.db.paging import PageRequest
from service.plugins.oidc.repository import OidcRepository


def list_page(database: Database, request: PageRequest) -> tuple[list[OidcUser], bool]:
    """Return users by name, and whether more follow."""
    with database.read() as session:
        return OidcRepository(session).page(after=request.after, limit=request.limit)


def set_user(
    database: Database, name: str, identity: tuple[str, str] | None, now: datetime, *, disabled: bool
) -> OidcUser:
    """Have a user's name belong to a subject of the provider, and permit or refuse its sign-ins.

    A name that belonged to another subject loses the tokens of its sign-ins, and so does another name of this subject.

    Args:
        identity: Issuer and subject; None: the subject that the name has.

    Raises:
        InvalidRequestError: the name is reserved, or the subject cannot be one.
        NotFoundError: no subject is given, and the name has none.
    """
    if name.lower() in RESERVED_NAMES:
        raise InvalidRequestError(f"`{name}` is reserved for the service", param="oidc_user", code="reserved_name")
    if identity is not None and not identity[1].isprintable():
        raise InvalidRequestError("must be the claim `sub` of the user, of printable characters", param="subject")
    with database.write() as session:
        repository, tokens = OidcRepository(session), TokenRepository(session)
        if identity is None:
            user = repository.user_of_name(name)
            if user is None:
                message = f"no subject of the provider has the name {name!r}"
                raise NotFoundError(message, code="oidc_user_not_found", param="oidc_user")
        else:
            user = _linked(database, repository, tokens, identity, name, now)
        if disabled:
            repository.revoke_tokens(user.issuer, user.subject, now)
            user.disabled_at = user.disabled_at or now
        else:
            user.disabled_at = None
        return user


def _linked(
    database: Database,
    repository: OidcRepository,
    tokens: TokenRepository,
    identity: tuple[str, str],
    name: str,
    now: datetime,
) -> OidcUser:
    """Return the user with this name and subject, after others that have either were removed."""
    if (similar := tokens.name_with_other_case(name)) is not None:
        message = f"differs from the existing name `{similar}` only by case; use that name or another one"
        raise InvalidRequestError(message, param="oidc_user", code="similar_name")
    for other in (repository.user_of_name(name), repository.user(*identity)):
        if other is not None and (other.name, other.issuer, other.subject) != (name, *identity):
            repository.revoke_tokens(other.issuer, other.subject, now)
            repository.remove_user(other)
    repository.add_user(database, *identity, name, now)
    user = repository.user(*identity)
    assert user is not None
    return user
