"""What the routes of the sign-in share: the provider, and whether there is one."""

from dataclasses import dataclass
from datetime import timedelta

from service.api.dependencies import AppState
from service.auth.sessions import Cookie
from service.core.errors import NotFoundError
from service.core.private_files import read_secret
from service.core.settings import Settings
from service.plugins.oidc.identity import Policy
from service.plugins.oidc.provider import Provider

NAME = "oidc"
PATH = "/sign-in/oidc"
CODE_PATH = f"{PATH}/code"
CALLBACK_PATH = f"{PATH}/callback"


@dataclass(frozen=True)
class OidcPart:
    """The shared part."""

    provider: Provider
    policy: Policy
    redirect_uri: str
    """Where the provider sends browsers back."""
    signed_out_uri: str
    """Where it sends them after a sign-out."""
    scopes: str
    lifetime: timedelta
    """Of a sign-in."""
    cookie: Cookie
    """The cookie of a browser with a started sign-in. It comes back with a redirect of another site, so it is not
    `Strict`, and is of the whole host, so that browsers protect its name from sibling domains."""


def make_part(app_state: AppState) -> OidcPart | None:
    """Return the part of a service; None if it has no provider.

    Raises:
        ServiceError: the file with the client secret cannot be used.
    """
    settings = app_state.settings
    if not settings.oidc_issuer:
        return None
    return OidcPart(
        provider=make_provider(settings),
        policy=Policy.from_settings(settings),
        redirect_uri=redirect_uri(settings),
        signed_out_uri=f"{settings.service_url}/sign-in",
        scopes=settings.oidc_scopes,
        lifetime=timedelta(hours=settings.oidc_session_hours),
        cookie=Cookie(secure=settings.service_url.startswith("https:"), suffix="-sign-in", same_site="Lax"),
    )


def make_provider(settings: Settings) -> Provider:
    """Return the provider of the settings, of which nothing has been read.

    Raises:
        ServiceError: the file with the client secret cannot be used.
    """
    return Provider(settings.oidc_issuer, settings.oidc_client_id, _client_secret(settings))


def redirect_uri(settings: Settings) -> str:
    """Return the address at which the provider sends browsers back."""
    return f"{settings.service_url}{CALLBACK_PATH}"


def _client_secret(settings: Settings) -> str:
    if settings.oidc_client_secret_file is not None:
        return read_secret(settings.oidc_client_secret_file.expanduser())
    assert settings.oidc_client_secret is not None
    return settings.oidc_client_secret.get_secret_value()


def part_of(app_state: AppState) -> OidcPart:
    """Return the part of a service. Raises NotFoundError: the service has no provider."""
    part: OidcPart | None = app_state.plugin_parts[NAME]
    if part is None:
        raise NotFoundError(
            "this service has no OpenID provider: sign in with a token, or ask an administrator to set "
            "TRAINYARD_OIDC_ISSUER",
            code="sign_in_disabled",
        )
    return part
