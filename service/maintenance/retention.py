"""What of the audit and of the messages to webhooks is too old to be kept."""

from datetime import timedelta

from service.api.dependencies import Services
from service.audit.repository import AuditRepository
from service.webhooks.repository import WebhookRepository

_PIECE = 5000
"""Rows deleted in one transaction."""


def forget(services: Services) -> None:
    """Delete a piece of each; the next round goes on."""
    now, settings = services.clock(), services.settings
    audited, told = (
        now - timedelta(days=settings.audit_retention_days),
        now - timedelta(days=settings.delivery_retention_days),
    )
    with services.database.read() as session:
        entries = AuditRepository(session).older(audited, _PIECE)
        deliveries = WebhookRepository(session).older(told, _PIECE)
    if entries or deliveries:
        with services.database.write() as session:
            AuditRepository(session).forget(entries)
            WebhookRepository(session).forget(deliveries)
