"""Webhooks: signed notifications of changes."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from service.api.dependencies import AppState
from service.api.plugin import PageLink, Plugin
from service.core.periodic_task import PeriodicTask
from service.core.settings import Settings
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.plugins.webhooks import dispatcher
from service.plugins.webhooks.dispatcher import WebhookDispatcher
from service.plugins.webhooks.outbox import Outbox
from service.plugins.webhooks.pages import PATH
from service.plugins.webhooks.pages import router as pages
from service.plugins.webhooks.part import NAME, WebhookPart, part_of
from service.plugins.webhooks.repository import WebhookRepository
from service.plugins.webhooks.routes import PREFIX, router
from service.plugins.webhooks.sender import Sender

_DELETE_BATCH = 5000
"""Deliveries deleted in a transaction."""


def _make_tasks(app_state: AppState, lease: LeaderLease) -> Sequence[PeriodicTask]:
    settings, part = app_state.settings, part_of(app_state)
    sending = WebhookDispatcher(
        app_state.database,
        lease,
        app_state.clock,
        Sender(settings.webhook_allowed_hosts, part.resolver),
        app_state.failpoint,
        service_url=settings.service_url,
    )
    delivery = PeriodicTask("webhooks", lambda: sending.run_once() > 0, dispatcher.SECONDS)
    sending.is_stopping = delivery.is_stopping
    part.notify = delivery.notify
    return (delivery,)


def _delete_old(database: Database, settings: Settings, now: datetime) -> None:
    before = now - timedelta(days=settings.delivery_retention_days)
    with database.read() as session:
        deliveries = WebhookRepository(session).older(before, _DELETE_BATCH)
    if deliveries:
        with database.write() as session:
            WebhookRepository(session).delete_deliveries(deliveries)


WEBHOOKS = Plugin(
    name=NAME,
    prefixes=(PREFIX,),
    routers=(router,),
    make_part=lambda app_state: WebhookPart(),
    listeners=(Outbox(),),
    make_tasks=_make_tasks,
    delete_old=_delete_old,
    pages=(pages,),
    admin_tabs=(PageLink(PATH, "Webhooks"),),
    templates="service.plugins.webhooks",
)
