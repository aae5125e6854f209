"""Sign-in by munge: a Unix account of the cluster proves who it is, and gets a token of its user."""

import hmac
import os
import secrets
import socket
from datetime import datetime, timedelta
from re import fullmatch

from service.audit.log import CURRENT_REQUEST, add_audit_detail, set_audit_target
from service.auth.munge import CredentialDecoder, CredentialError
from service.auth.repository import TokenRepository, UnixUserRepository
from service.auth.token_service import RESERVED_NAMES
from service.auth.tokens import Role, hash_token, new_token
from service.auth.unix_accounts import AccountLookup, UnixAccount
from service.core.errors import ConflictError, NotFoundError, PermissionDeniedError, TooManyRequestsError
from service.core.settings import Settings
from service.db.engine import Database
from service.db.models import SignInNonce, Token
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.sign_in import SignInRequest, sign_in_message

NONCE_SECONDS = 60
"""Lifetime of a nonce; a client uses it at once."""
MAX_NONCES = 10_000
"""Nonces of all clients that are neither used nor expired."""
MAX_TOKENS = 20
"""Maximum number of a user's valid tokens from sign-ins. A further sign-in revokes the oldest token."""
_MAX_NAME_LENGTH = 64
_NOBODY = 65534
"""The uid of accounts that the kernel, or a filesystem, cannot name."""


class MungeSignIn:
    """Signs in Unix accounts. Every replica of the API can use the nonces of the others."""

    def __init__(
        self, database: Database, settings: Settings, decoder: CredentialDecoder, accounts: AccountLookup
    ) -> None:
        self._database = database
        self._settings = settings
        self._decoder = decoder
        self._accounts = accounts
        self._host_name = socket.gethostname()

    def create_nonce(self, network: str, now: datetime) -> tuple[str, datetime]:
        """Return a nonce for the client of this address or network, and when it expires.

        Raises:
            NotFoundError: sign-in by munge is switched off.
            TooManyRequestsError: too many nonces are neither used nor expired.
        """
        self._require_enabled()
        nonce, expires_at = secrets.token_urlsafe(32), now + timedelta(seconds=NONCE_SECONDS)
        with self._database.write() as session:
            repository = UnixUserRepository(session)
            repository.remove_expired_nonces(now)
            if repository.count_nonces() >= MAX_NONCES:
                raise TooManyRequestsError("too many sign-ins are in progress")
            session.add(SignInNonce(hash=hash_token(nonce), network=network, expires_at=expires_at))
        return nonce, expires_at

    def sign_in(self, request: SignInRequest, network: str, now: datetime) -> tuple[Token, str]:
        """Create a token of the Unix account that made the credential; return it and its secret.

        Raises:
            NotFoundError: sign-in by munge is switched off.
            CredentialError: the nonce or the credential is not valid for this service and client.
            PermissionDeniedError: the account may not sign in.
            ConflictError: the name of the account belongs to another user.
            UnavailableError: munge or the name service does not work.
        """
        self._require_enabled()
        hash_ = hash_token(request.nonce)
        with self._database.read() as session:
            known = UnixUserRepository(session).has_nonce(hash_, network, now)
        # Garbage must not cost a process.
        if not known:
            raise _unknown_nonce()
        # Clients repeat a request that gets 503, which they could not once the credential is decoded.
        self._accounts.require_groups(self._groups)
        decoded = self._decoder.decode(request.credential)
        self._check_message(decoded.message, request.nonce)
        with self._database.write() as session:
            if not UnixUserRepository(session).use_nonce(hash_, network, now):
                raise _unknown_nonce()
        account = self._accounts.by_uid(decoded.uid, self._groups)
        _set_actor(account, decoded.uid)
        return self._create_token(*self._admit(account, decoded.uid), now)

    def _require_enabled(self) -> None:
        if not self._settings.munge_role:
            raise NotFoundError(
                "sign-in by munge is switched off; ask an administrator for a token, or to set TRAINYARD_MUNGE_ROLE",
                code="sign_in_disabled",
            )

    @property
    def _groups(self) -> frozenset[str]:
        """The groups of the settings."""
        return frozenset(filter(None, (self._settings.munge_group, self._settings.munge_admin_group)))

    def _check_message(self, message: bytes, nonce: str) -> None:
        """Check that a credential was made for this service and nonce."""
        settings = self._settings
        for url in {settings.service_url, settings.url_for_workers, settings.local_url}:
            if hmac.compare_digest(sign_in_message(url, self._host_name, nonce), message):
                return
        raise CredentialError(
            f"the credential was made for another service or nonce; this service is at {settings.service_url}, "
            "and a client must sign in at that URL",
            code="wrong_service",
        )

    def _admit(self, account: UnixAccount | None, uid: int) -> tuple[UnixAccount, Role]:
        """Return the account and its role. Raises PermissionDeniedError: the account may not sign in."""
        settings = self._settings
        if account is None:
            raise _refused(f"the service's machine has no account with the uid {uid}, or its name has another uid")
        if uid in (0, _NOBODY, os.geteuid()) or uid < settings.munge_min_uid:
            # Jobs may run as the service's account, so a credential of it proves nothing about a user.
            raise _refused("root, the service's own account and system accounts cannot sign in")
        name = account.name
        allowed = fullmatch(USER_NAME_PATTERN, name) and len(name) <= _MAX_NAME_LENGTH
        if not allowed or name.lower() in RESERVED_NAMES:
            raise _refused(f"the account name {name[:_MAX_NAME_LENGTH]!r} cannot be the name of a user")
        if settings.munge_admin_group and settings.munge_admin_group in account.groups:
            return account, "admin"
        if settings.munge_group and settings.munge_group not in account.groups:
            raise PermissionDeniedError(
                f"only members of the Unix group `{settings.munge_group}` can sign in", code="group_required"
            )
        return account, "viewer" if settings.munge_role == "viewer" else "user"

    def _create_token(self, account: UnixAccount, role: Role, now: datetime) -> tuple[Token, str]:
        token, text = new_token(
            name=account.name,
            role=role,
            now=now,
            created_by=account.name,
            expires_at=now + timedelta(days=self._settings.munge_token_days),
            unix_uid=account.uid,
        )
        context = CURRENT_REQUEST.get()
        if context is not None:
            context.token_id, context.role = token.id, role
        with self._database.write() as session:
            self._require_own_name(UnixUserRepository(session), TokenRepository(session), account, now)
            TokenRepository(session).revoke_sign_ins(account.name, now, role=role, limit=MAX_TOKENS - 1)
            session.add(token)
            set_audit_target(token.id)
        return token, text

    def _require_own_name(
        self, users: UnixUserRepository, tokens: TokenRepository, account: UnixAccount, now: datetime
    ) -> None:
        """Check that the name belongs to the account; with the first sign-in it does.

        Raises:
            ConflictError: the name belongs to another user, whose jobs and secrets would become the account's.
        """
        tokens.lock_name(self._database, account.name)
        if users.add_new(self._database, account.name, account.uid, now):
            taken = tokens.name_in_any_case(account.name) or tokens.name_at_provider(account.name)
            if taken is not None:
                raise ConflictError(
                    f"a user `{taken}` exists, who may be another person; an administrator can link it to the Unix "
                    f"account with: trainyard tokens link {account.name}",
                    code="name_in_use",
                )
        elif users.uid(account.name) != account.uid:
            raise ConflictError(
                f"the name `{account.name}` or the uid {account.uid} belongs to a Unix account that signed in before; "
                f"an administrator can change that with: trainyard tokens link {account.name}",
                code="account_changed",
            )


def _unknown_nonce() -> CredentialError:
    return CredentialError(
        "the nonce is unknown, used or expired, or was requested from another address", code="unknown_nonce"
    )


def _refused(message: str) -> PermissionDeniedError:
    return PermissionDeniedError(message, code="account_refused")


def _set_actor(account: UnixAccount | None, uid: int) -> None:
    """Have the audit entry name the account, also if it is refused."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.actor = account.name[:128] if account is not None else f"uid {uid}"
    add_audit_detail(unix_uid=uid)
