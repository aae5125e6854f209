"""The check of the sign-in by a provider: whether its metadata and keys can be read."""

import asyncio

from service.core.clock import utc_now
from service.core.errors import ServiceError
from service.core.settings import Settings
from service.plugins.oidc.part import make_provider, redirect_uri
from service.plugins.oidc.provider import Provider
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding

_NAME = "oidc"


def provider(settings: Settings) -> Finding:
    """Whether users can sign in by the OpenID provider, if the administrator has set one."""
    if not settings.oidc_issuer:
        return ok_finding(_NAME, "off (TRAINYARD_OIDC_ISSUER)")
    try:
        asyncio.run(_read(make_provider(settings)))
    except ServiceError as error:
        return error_finding(_NAME, error.message, "check TRAINYARD_OIDC_ISSUER, and what the log states about it")
    return ok_finding(_NAME, f"{settings.oidc_issuer} answers; register {redirect_uri(settings)} there")


async def _read(provider: Provider) -> None:
    await provider.keys(utc_now())
