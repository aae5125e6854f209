"""The operations on secrets: users list the names, store values and delete secrets. No request of a user returns a
value."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime

import structlog

from service.audit.log import add_audit_detail, set_audit_target
from service.auth.principals import Principal
from service.core.errors import (
    ConflictError,
    InvalidRequestError,
    InvalidSpecError,
    NotFoundError,
    PermissionDeniedError,
)
from service.core.settings import Settings
from service.db.engine import Database
from service.db.models import Secret
from service.jobs.service import require_change
from service.secrets.encryption import SecretCipher, SecretKeyError
from service.secrets.repository import OLDEST, SecretRepository, any_stored
from trainyard.contract.problems import Problem
from trainyard.contract.spec.environment import SECRETS, reserved_reason
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.validation_messages import MAX_VARIABLE_NAME, PATTERN_MESSAGES, VARIABLE_PATTERN

log = structlog.get_logger("service")

MAX_SECRETS = 100
"""Maximum number of secrets per user."""


class SecretService:
    """The secrets of all users. A secret belongs to the name of a user, as a job does."""

    def __init__(self, database: Database, settings: Settings):
        self._database = database
        self._cipher = SecretCipher.from_settings(settings)

    def check_key(self) -> str | None:
        """Return why stored secrets cannot be read; None if they can, or if there are none yet.

        Raises:
            SecretKeyError: the key file that the settings name is missing or unusable.
        """
        try:
            self._cipher.load_key()
        except SecretKeyError as error:
            if not self._cipher.has_default_key:
                raise
            return error.message if self._any_stored() else None
        with self._database.read() as session:
            oldest = session.execute(OLDEST).first()
        try:
            if oldest is not None:
                self._cipher.require_readable(*oldest)
        except SecretKeyError as error:
            return error.message
        return None

    def _any_stored(self) -> bool:
        with self._database.read() as session:
            return any_stored(session)

    def list_all(self, principal: Principal, owner: str | None = None) -> Sequence[Secret]:
        """Return the secrets of the owner (by default the caller), sorted by name.

        Raises:
            PermissionDeniedError: the owner is another user, and the caller is not an administrator.
        """
        name = _owner(principal, owner, "list")
        with self._database.read() as session:
            return SecretRepository(session, name).list_all()

    def store(self, principal: Principal, name: str, value: str, now: datetime) -> Secret:
        """Create or replace a secret of the caller.

        Raises:
            PermissionDeniedError: the caller is a viewer.
            InvalidRequestError: no spec may set a variable of this name.
            ConflictError: the caller has as many secrets as allowed.
            SecretKeyError: the key is missing or unusable.
        """
        require_change(principal)
        _check_name(name)
        # If secrets are stored, their key must exist. A new key would hide that it was lost.
        if self._cipher.has_default_key and not self._any_stored():
            self._cipher.create_key()
        encrypted = self._cipher.encrypt(principal.name, name, value)
        with self._database.write() as session:
            secrets = SecretRepository(session, principal.name)
            if len({name, *(row.name for row in secrets.list_all())}) > MAX_SECRETS:
                message = f"{principal.name} has {MAX_SECRETS} secrets, the limit per user"
                raise ConflictError(message, code="too_many_secrets")
            return secrets.store(name, encrypted, now)

    def delete(self, principal: Principal, name: str, owner: str | None = None) -> None:
        """Delete a secret of the owner (by default the caller).

        Raises:
            PermissionDeniedError: the caller is a viewer, or is neither the owner nor an administrator.
            InvalidRequestError: no secret can have this name.
            NotFoundError: the owner has no such secret.
        """
        require_change(principal)
        _check_name(name)
        owner_name = _owner(principal, owner, "delete")
        with self._database.write() as session:
            secrets = SecretRepository(session, owner_name)
            rows = secrets.select([name])
            if not rows:
                subject = "you have" if owner_name == principal.name else f"{owner_name} has"
                raise NotFoundError(f"{subject} no secret {name!r}", code="secret_not_found", param="secret_name")
            session.delete(rows[0])

    def require(self, principal: Principal, spec: TrainingSpec) -> None:
        """Check that the ranks will get the secrets of a spec.

        Raises:
            InvalidSpecError: the spec names secrets that the caller does not have.
            SecretKeyError: the key is missing or unusable, or is not the key that encrypted the secrets.
        """
        names = spec.environment.secrets
        if not names:
            return
        with self._database.read() as session:
            rows = SecretRepository(session, principal.name).select(names)
            existing = {row.name: row.encrypted for row in rows}
        if missing := [name for name in names if name not in existing]:
            message = "is not a secret of yours; store it with: trainyard secrets set"
            raise InvalidSpecError(
                [Problem(param=f"{SECRETS}.{name}", message=f"{message} {name}") for name in missing]
            )
        for name, encrypted in existing.items():
            self._cipher.require_readable(principal.name, name, encrypted)

    def values(self, owner: str, names: Collection[str]) -> dict[str, str]:
        """Return the values of a user's secrets by name. It lacks secrets that are missing or cannot be decrypted."""
        if not names:
            return {}
        with self._database.read() as session:
            rows = [(row.name, row.encrypted) for row in SecretRepository(session, owner).select(names)]
        try:
            values = {name: self._cipher.decrypt(owner, name, encrypted) for name, encrypted in rows}
        except SecretKeyError as error:
            log.warning(
                "secrets cannot be decrypted", user=owner, names=[name for name, _ in rows], reason=error.message
            )
            return {}
        if unreadable := [name for name, value in values.items() if value is None]:
            reason = "they were encrypted with another key; restore it, or store the secrets again"
            log.warning("secrets cannot be decrypted", user=owner, names=unreadable, reason=reason)
        return {name: value for name, value in values.items() if value is not None}


def _owner(principal: Principal, owner: str | None, verb: str) -> str:
    """Return the name of the owner. The audit entry of an administrator who acts for another user names that user."""
    if owner in (None, principal.name):
        return principal.name
    if principal.role != "admin":
        raise PermissionDeniedError(f"only administrators {verb} the secrets of other users", param="user")
    add_audit_detail(user=owner)
    return str(owner)


def _check_name(name: str) -> None:
    if len(name) > MAX_VARIABLE_NAME or not re.fullmatch(VARIABLE_PATTERN, name):
        # The user may have sent the value as the name by mistake, and the audit log must not have it.
        set_audit_target("an invalid name")
        raise InvalidRequestError(PATTERN_MESSAGES[VARIABLE_PATTERN], param="secret_name")
    if reason := reserved_reason(name):
        raise InvalidRequestError(f"`{name}` {reason}; a spec may not set this variable", param="secret_name")
