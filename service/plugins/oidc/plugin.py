"""Sign-in by an OpenID provider."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from service.api.plugin import PageLink, Plugin
from service.core.clock import utc_now
from service.core.errors import ServiceError
from service.core.settings import Settings
from service.db.engine import Database
from service.plugins.oidc.pages import router as pages
from service.plugins.oidc.pages import sign_out_address
from service.plugins.oidc.part import NAME, PATH, make_part, make_provider, redirect_uri
from service.plugins.oidc.provider import Provider
from service.plugins.oidc.repository import OidcRepository
from service.plugins.oidc.routes import PREFIX, router
from trainyard.contract.wire.diagnostics import Finding, error_finding, ok_finding

_DELETE_BATCH = 1000
"""Rows deleted in a transaction."""
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


def _sign_ins(settings: Settings) -> Sequence[PageLink]:
    return (PageLink(PATH, f"Sign in with {settings.oidc_label}"),) if settings.oidc_issuer else ()


def _delete_old(database: Database, settings: Settings, now: datetime) -> None:
    with database.read() as session:
        expired = OidcRepository(session).expired_tokens(now, _DELETE_BATCH)
    if expired:
        with database.write() as session:
            OidcRepository(session).remove_tokens(expired)


OIDC = Plugin(
    name=NAME,
    prefixes=(PREFIX,),
    routers=(router,),
    make_part=make_part,
    checks=(provider,),
    delete_old=_delete_old,
    pages=(pages,),
    sign_ins=_sign_ins,
    after_sign_out=sign_out_address,
    templates="service.plugins.oidc",
)
