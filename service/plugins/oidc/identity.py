"""Decides from the claims of a user what they may do here, and under which name. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from re import fullmatch
from typing import Any

from service.auth.token_service import RESERVED_NAMES
from service.auth.tokens import Role
from service.core.settings import Settings
from service.plugins.oidc.errors import SignInRefusedError
from trainyard.contract.validation_messages import USER_NAME_PATTERN

MAX_NAME_LENGTH = 64
_ROLES: Sequence[Role] = ("admin", "user", "viewer")
"""Roles in the order of their rights."""


@dataclass(frozen=True)
class Policy:
    """Who can sign in, and with which role."""

    name_claim: str
    groups_claim: str
    roles: Mapping[str, Role]
    """Roles by group."""
    other_role: Role | None
    """The role of users without any of the groups; None: they cannot sign in."""
    email_domains: frozenset[str]
    """Domains of e-mail addresses; empty: any."""

    @classmethod
    def from_settings(cls, settings: Settings) -> "Policy":
        return cls(
            name_claim=settings.oidc_name_claim,
            groups_claim=settings.oidc_groups_claim,
            roles=settings.oidc_roles,
            other_role=settings.oidc_role or None,
            email_domains=frozenset(settings.oidc_email_domains),
        )

    @property
    def claims(self) -> frozenset[str]:
        """The claims that a decision needs, if the provider states them."""
        groups = {self.groups_claim} if self.roles else set()
        return frozenset({self.name_claim} | groups | ({"email", "email_verified"} if self.email_domains else set()))


def decide_role(claims: Mapping[str, Any], policy: Policy) -> Role:
    """Return the role of a user. Raises SignInRefusedError: the user may not sign in."""
    if policy.email_domains:
        _check_email(claims, policy.email_domains)
    given = claims.get(policy.groups_claim)
    groups = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    roles = {policy.roles[group] for group in groups if isinstance(group, str) and group in policy.roles}
    role = next((role for role in _ROLES if role in roles), policy.other_role)
    if role is None:
        raise SignInRefusedError(
            "you are in none of the groups that can use this service: ask an administrator to add you to one "
            "(TRAINYARD_OIDC_GROUP_ROLES), and sign in again",
            code="group_required",
        )
    return role


def decide_name(claims: Mapping[str, Any], policy: Policy) -> str:
    """Return the name of a user who signs in for the first time.

    Raises:
        SignInRefusedError: the claim is missing, or cannot be the name of a user.
    """
    name = claims.get(policy.name_claim)
    if not isinstance(name, str) or not name:
        raise SignInRefusedError(
            f"the provider does not state your name in the claim `{policy.name_claim}`: an administrator must let it "
            "state the name, or change TRAINYARD_OIDC_NAME_CLAIM",
            code="name_missing",
        )
    shown = repr(name[:MAX_NAME_LENGTH])
    if len(name) > MAX_NAME_LENGTH or not fullmatch(USER_NAME_PATTERN, name):
        raise SignInRefusedError(
            f"the name {shown} cannot be the name of a user, which has letters, digits and . _ @ + - only: an "
            "administrator can take the name from another claim by TRAINYARD_OIDC_NAME_CLAIM",
            code="name_invalid",
        )
    if name.lower() in RESERVED_NAMES:
        message = f"the name {shown} is reserved for the service: ask for another name at the provider"
        raise SignInRefusedError(message, code="reserved_name")
    return name


def _check_email(claims: Mapping[str, Any], domains: frozenset[str]) -> None:
    email = claims.get("email")
    domain = email.rpartition("@")[2].lower() if isinstance(email, str) and "@" in email else ""
    if domain not in domains:
        raise SignInRefusedError(
            "your e-mail address is of none of the domains that can use this service: sign in with another account, or "
            "ask an administrator (TRAINYARD_OIDC_EMAIL_DOMAINS)",
            code="email_refused",
        )
    if claims.get("email_verified") is not True:
        raise SignInRefusedError(
            "the provider does not state that it has verified your e-mail address: verify it there, and sign in again",
            code="email_not_verified",
        )
