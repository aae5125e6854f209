"""Sign-in by an OpenID provider."""

from collections.abc import Sequence
from datetime import datetime

from service.api.plugin import PageLink, Plugin
from service.core.settings import Settings
from service.db.engine import Database
from service.plugins.oidc.checks import provider
from service.plugins.oidc.pages import router as pages
from service.plugins.oidc.pages import sign_out_address
from service.plugins.oidc.part import NAME, PATH, make_part
from service.plugins.oidc.repository import OidcRepository
from service.plugins.oidc.routes import PREFIX, router

_DELETE_BATCH = 1000
"""Rows deleted in a transaction."""


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
