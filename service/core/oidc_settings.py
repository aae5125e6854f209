"""Settings of the sign-in by an OpenID provider."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from trainyard.contract.local_paths import is_loopback
from trainyard.contract.wire.access import Role

_ROLES: tuple[Role, ...] = ("viewer", "user", "admin")
"""Roles in the order of their rights."""


def _parse_issuer(text: str) -> str:
    """Return the URL of an issuer as it is, because issuers are compared as texts.

    Raises:
        ValueError: it is not an https URL, or http on this machine, or it has a query or a fragment.
    """
    if not text:
        return ""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError as error:
        raise ValueError(f"`{text}` is not a URL: {error}") from None
    if not host or "@" in url.netloc or "?" in text or "#" in text or not text.isascii() or " " in text:
        raise ValueError(f"`{text}` is not a URL such as https://login.example.org/realms/science")
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(host)):
        raise ValueError(f"`{text}` must begin with https://, so that nobody on the network can sign in as others")
    return text


class OidcSettings(BaseSettings):
    """The part of the settings about the sign-in by an OpenID provider."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    oidc_issuer: Annotated[str, AfterValidator(_parse_issuer)] = ""
    """Issuer of the OpenID provider by which users sign in on the dashboard, exactly as the provider states it:
    `https://login.example.org/realms/science`. Default: nobody can."""
    oidc_client_id: Annotated[str, Field(max_length=255, validate_default=True)] = ""
    """Id of the service at the provider. The redirect URI to register there is `<PUBLIC_URL>/sign-in/oidc/callback`."""
    oidc_client_secret: SecretStr | None = None
    """The secret of that id; a file (the next setting) is safer."""
    oidc_client_secret_file: Annotated[Path | None, Field(validate_default=True)] = None
    """File with the secret of that id; only the service's account may read it."""
    oidc_scopes: str = "openid profile email"
    """Scopes that the service requests, separated by blanks; `openid` is one of them. Some providers send groups only
    with a further scope, such as `groups`."""
    oidc_name_claim: Annotated[str, Field(min_length=1, max_length=128)] = "preferred_username"
    """Claim with the name of a new user: letters, digits and `. _ @ + -`. The name stays when the claim changes."""
    oidc_groups_claim: Annotated[str, Field(min_length=1, max_length=128)] = "groups"
    """Claim with the list of a user's groups."""
    oidc_role: Literal["", "user", "viewer"] = ""
    """Role of users who are in no group of the next setting, `user` or `viewer`. Default: they cannot sign in."""
    oidc_group_roles: Annotated[tuple[str, ...], NoDecode, Field(validate_default=True)] = ()
    """Roles of groups, comma-separated: `ml-admins=admin,research=user,staff=viewer`. A user of several groups has the
    role with most rights."""
    oidc_email_domains: Annotated[tuple[str, ...], NoDecode] = ()
    """Domains of the e-mail addresses of users who can sign in, comma-separated; the provider must state that it has
    verified the address (`email_verified`). Default: the address does not matter."""
    oidc_session_hours: Annotated[float, Field(gt=0, le=8760)] = 12.0
    """Lifetime of a sign-in by the provider. Changes of groups take effect at the next sign-in."""
    oidc_label: Annotated[str, Field(min_length=1, max_length=60)] = "your organisation"
    """Name of the provider on the button of the sign-in page: `Sign in with your organisation`."""

    @field_validator("oidc_client_id")
    @classmethod
    def _id_with_issuer(cls, value: str, info: ValidationInfo) -> str:
        if value:
            _require_issuer(info)
        elif info.data.get("oidc_issuer"):
            raise ValueError(
                "is missing: set it to the id that the provider of TRAINYARD_OIDC_ISSUER gave this service"
            )
        return value

    @field_validator("oidc_client_secret")
    @classmethod
    def _secret_with_issuer(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        _require_issuer(info)
        return value

    @field_validator("oidc_client_secret_file", mode="before")
    @classmethod
    def _no_empty_path(cls, value: object) -> object:
        return value or None

    @field_validator("oidc_client_secret_file")
    @classmethod
    def _one_secret(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        has_secret = info.data.get("oidc_client_secret") is not None
        if path is not None:
            _require_issuer(info)
            if has_secret:
                raise ValueError("name the file, or set TRAINYARD_OIDC_CLIENT_SECRET, but not both")
        elif info.data.get("oidc_issuer") and not has_secret and "oidc_client_secret" in info.data:
            raise ValueError("is missing: name a file with the secret that the provider gave this service")
        return path

    @field_validator("oidc_scopes")
    @classmethod
    def _scope_of_openid(cls, scopes: str) -> str:
        if "openid" not in scopes.split():
            raise ValueError("must contain `openid`, without which the provider does not state who signs in")
        return " ".join(scopes.split())

    @field_validator("oidc_role")
    @classmethod
    def _role_with_issuer(cls, role: str, info: ValidationInfo) -> str:
        if role:
            _require_issuer(info)
        return role

    @field_validator("oidc_group_roles")
    @classmethod
    def _known_roles(cls, pairs: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for pair in pairs:
            group, _, role = pair.rpartition("=")
            if not group.strip() or role.strip() not in _ROLES:
                raise ValueError(f"`{pair}` is not a group and its role, such as research=user ({', '.join(_ROLES)})")
        if pairs:
            _require_issuer(info)
        elif info.data.get("oidc_issuer") and info.data.get("oidc_role") == "":
            raise ValueError("is missing, and nobody could sign in: set it, or TRAINYARD_OIDC_ROLE")
        return pairs

    @field_validator("oidc_email_domains")
    @classmethod
    def _plain_domains(cls, domains: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for domain in domains:
            if "@" in domain or "*" in domain or "." not in domain.strip("."):
                raise ValueError(f"`{domain}` is not a domain such as example.org")
        if domains:
            _require_issuer(info)
        return tuple(domain.lower() for domain in domains)

    @property
    def oidc_roles(self) -> Mapping[str, Role]:
        """The role of each group of the settings; of a group that is listed twice, the role with more rights."""
        roles: dict[str, Role] = {}
        for pair in self.oidc_group_roles:
            group, _, role = pair.rpartition("=")
            given = cast(Role, role.strip())
            known = roles.get(group.strip(), given)
            roles[group.strip()] = max(given, known, key=_ROLES.index)
        return roles


def _require_issuer(info: ValidationInfo) -> None:
    if info.data.get("oidc_issuer") == "":
        raise ValueError("has no effect without TRAINYARD_OIDC_ISSUER")
