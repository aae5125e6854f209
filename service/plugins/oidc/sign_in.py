"""What a sign-in by the provider reads and writes: the started sign-in, the user, the token and the session."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from service.audit.log import CURRENT_REQUEST, add_audit_detail, set_audit_change, set_audit_target
from service.auth.principals import Principal
from service.auth.repository import SessionRepository, TokenRepository
from service.auth.sessions import start_session
from service.auth.sign_in_codes import create_program_code
from service.auth.tokens import Role, hash_token, new_token
from service.core.errors import TooManyRequestsError
from service.db.engine import Database
from service.db.models import OidcRequest, OidcToken, OidcUser, Token
from service.plugins.oidc.errors import SignInFailedError, SignInRefusedError
from service.plugins.oidc.identity import Policy, decide_name, decide_role
from service.plugins.oidc.repository import OidcRepository
from trainyard.contract.base import sanitize

ACTION = "finish_oidc_sign_in"
"""The action of audit entries, and the id of the operation."""
REQUEST_SECONDS = 600
"""How long a user may take at the provider."""
MAX_REQUESTS = 10_000
"""Sign-ins of all browsers that are started and neither finished nor expired."""
MAX_TOKENS = 20
"""Maximum number of a user's valid tokens from sign-ins. A further sign-in revokes the oldest token."""
_MAX_SHOWN = 128
_MAX_ID_TOKEN = 4096
"""Length of an ID token that fits into an address, as a hint for the sign-out."""


@dataclass(frozen=True)
class Started:
    """A started sign-in."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)


@dataclass(frozen=True)
class Identity:
    """Who the provider states that a user is."""

    issuer: str
    subject: str
    claims: Mapping[str, Any] = field(repr=False)
    id_token: str = field(repr=False)

    @property
    def hint(self) -> str:
        """The ID token, as a hint for the sign-out; empty if it is too long."""
        return self.id_token if len(self.id_token) <= _MAX_ID_TOKEN else ""


def start(database: Database, browser: str, target: str, session_secret: str | None, now: datetime) -> Started:
    """Store a started sign-in of the browser with this secret, which alone can finish it, once.

    Raises:
        TooManyRequestsError: too many sign-ins are neither finished nor expired.
    """
    started = Started(*(secrets.token_urlsafe(32) for _ in range(3)))
    row = OidcRequest(
        hash=hash_token(started.state),
        browser=hash_token(browser),
        nonce=started.nonce,
        verifier=started.verifier,
        target=target,
        session=hash_token(session_secret) if session_secret else "",
        expires_at=now + timedelta(seconds=REQUEST_SECONDS),
    )
    with database.write() as session:
        repository = OidcRepository(session)
        repository.remove_expired_requests(now)
        if repository.count_requests() >= MAX_REQUESTS:
            raise TooManyRequestsError("too many sign-ins are in progress: sign in again later")
        session.add(row)
    return started


def take(database: Database, state: str, browser: str | None, service_url: str, now: datetime) -> OidcRequest:
    """Use up the sign-in with this state, which the browser with this secret has started.

    Raises:
        SignInFailedError: this browser has started none with this state, or has finished it, or it has expired.
    """
    if state and browser:
        with database.write() as session:
            row = OidcRepository(session).take_request(hash_token(state), hash_token(browser), now)
        if row is not None:
            return row
    raise SignInFailedError(
        "this sign-in was started in another browser, was used before, or took more than ten minutes: sign in again, "
        f"at {service_url}/sign-in",
        code="unknown_state",
    )


def admit(
    database: Database, identity: Identity, policy: Policy, request: OidcRequest, lifetime: timedelta, now: datetime
) -> str:
    """Sign a user in; return the secret of a new session, which replaces the session that the browser had.

    Raises:
        SignInRefusedError: the user may not sign in, is disabled, or has the name of another user.
    """
    token = _create_token(database, identity, policy, lifetime, now)
    role: Role = token.role  # type: ignore[assignment]
    principal = Principal(kind="user", id=token.id, name=token.name, role=role)
    secret = start_session(database, principal, lifetime, now)
    if request.session:
        with database.write() as session:
            SessionRepository(session).remove(request.session)
    return secret


def admit_program(
    database: Database, identity: Identity, policy: Policy, _request: OidcRequest, lifetime: timedelta, now: datetime
) -> str:
    """Sign a program of a user in; return the code by which it gets its token.

    Raises:
        SignInRefusedError: as in `admit`.
    """
    token = _create_token(database, identity, policy, lifetime, now, for_program=True)
    return create_program_code(database, token.id, now)


def _create_token(
    database: Database,
    identity: Identity,
    policy: Policy,
    lifetime: timedelta,
    now: datetime,
    *,
    for_program: bool = False,
) -> Token:
    """Create the token of a sign-in, whose secret nobody has: sessions depend on it, and a program gets a secret."""
    try:
        role = decide_role(identity.claims, policy)
    except SignInRefusedError:
        # Who has lost all groups also loses the sessions of earlier sign-ins.
        with database.write() as session:
            OidcRepository(session).revoke_tokens(identity.issuer, identity.subject, now)
        raise
    with database.write() as session:
        repository = OidcRepository(session)
        user = _require_user(database, repository, TokenRepository(session), identity, policy, now)
        token, _ = new_token(
            name=user.name, role=role, now=now, created_by=user.name, expires_at=now + lifetime, is_sign_in=True
        )
        _set_actor(user.name, token.id, role)
        repository.revoke_tokens(identity.issuer, identity.subject, now, role=role, limit=MAX_TOKENS - 1)
        session.add(token)
        session.flush()
        session.add(
            OidcToken(
                token_id=token.id,
                issuer=identity.issuer,
                subject=identity.subject,
                id_token=None if for_program else identity.hint,
                expires_at=now + lifetime,
            )
        )
        user.signed_in_at = now
    return token


def _require_user(
    database: Database,
    repository: OidcRepository,
    tokens: TokenRepository,
    identity: Identity,
    policy: Policy,
    now: datetime,
) -> OidcUser:
    """Return the user to whom a subject belongs; at its first sign-in, a new one with the name in the claims."""
    user = repository.user(identity.issuer, identity.subject)
    if user is None:
        name = decide_name(identity.claims, policy)
        tokens.lock_name(database, name)
        if repository.add_user(database, identity.issuer, identity.subject, name, now):
            taken = tokens.name_in_any_case(name) or repository.unix_name_in_any_case(name)
            if taken is not None:
                raise _name_in_use(name)
        # Another request may have added the same subject meanwhile.
        user = repository.user(identity.issuer, identity.subject)
        if user is None:
            raise _name_in_use(name)
    if user.disabled_at is not None:
        message = "an administrator has disabled your account here: ask an administrator to enable it"
        raise SignInRefusedError(message, code="user_disabled")
    return user


def _name_in_use(name: str) -> SignInRefusedError:
    """Return the error about a name whose jobs and secrets would become the jobs and secrets of another person."""
    return SignInRefusedError(
        f"a user `{name}` exists here, who may be another person: if that is you, an administrator can link that user "
        f"to your account, whose subject the audit log has, with: trainyard tokens link {name} --subject SUBJECT",
        code="name_in_use",
    )


def _set_actor(name: str, token_id: str, role: Role) -> None:
    """Have the transaction include an audit entry that names the user."""
    set_audit_change(ACTION, name)
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.token_id, context.role = token_id, role
    set_audit_target(token_id)


def set_subject(identity: Identity, policy: Policy) -> None:
    """Have the audit entry state the subject and its name at the provider, also if it is refused."""
    name = identity.claims.get(policy.name_claim)
    shown = {"name": sanitize(name)[:_MAX_SHOWN]} if isinstance(name, str) else {}
    add_audit_detail(issuer=identity.issuer, subject=identity.subject, **shown)
