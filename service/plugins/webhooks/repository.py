"""All SQL about webhooks and their deliveries, except writing new deliveries (`outbox.py`)."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from service.core.errors import NotFoundError
from service.db.models import Delivery, Webhook
from service.db.paging import PageRequest, fetch_page
from service.db.repository import Repository


class WebhookRepository(Repository):
    """Webhooks and deliveries within a session."""

    def get(self, webhook_id: str, owner: str | None) -> Webhook:
        """Return a webhook of the owner, or of anyone (None).

        Raises:
            NotFoundError: there is none, or it belongs to another user.
        """
        webhook = self._session.get(Webhook, webhook_id)
        if webhook is None or (owner is not None and webhook.created_by != owner):
            raise NotFoundError(f"there is no webhook {webhook_id!r}", code="webhook_not_found", param="webhook_id")
        return webhook

    def count_owned(self, owner: str) -> int:
        """Count the webhooks of a user."""
        query = sa.select(sa.func.count()).select_from(Webhook).where(Webhook.created_by == owner)
        return self._session.scalar(query) or 0

    def list_page(self, owner: str | None, page: PageRequest) -> tuple[list[Webhook], bool]:
        """Return a page of a user's webhooks, or of all (None), and whether more follow."""
        query = sa.select(Webhook)
        if owner is not None:
            query = query.where(Webhook.created_by == owner)
        return fetch_page(self._session, query, Webhook.id, page)

    def list_deliveries(self, webhook: Webhook, page: PageRequest) -> tuple[list[Delivery], bool]:
        """Return a page of a webhook's deliveries, and whether more follow."""
        query = sa.select(Delivery).where(Delivery.webhook_id == webhook.id)
        return fetch_page(self._session, query, Delivery.id, page)

    def due(self, now: datetime, limit: int, per_webhook: int) -> list[tuple[Delivery, Webhook]]:
        """Return due deliveries with their webhooks: the oldest of each webhook first, then the second oldest."""
        order = (Delivery.next_at, Delivery.id)
        position = sa.func.row_number().over(partition_by=Delivery.webhook_id, order_by=order).label("position")
        ranked = sa.select(Delivery.id, position).where(Delivery.next_at <= now).subquery()
        query = sa.select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        query = query.join(ranked, ranked.c.id == Delivery.id).where(ranked.c.position <= per_webhook)
        rows = self._session.execute(query.order_by(ranked.c.position, *order).limit(limit))
        return [(delivery, webhook) for delivery, webhook in rows]

    def put_off(self, webhook: Webhook, until: datetime) -> None:
        """Let all deliveries of a failing webhook that are due before a time wait until then."""
        waiting = sa.update(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.next_at < until)
        self._session.execute(waiting.values(next_at=until))

    def get_delivery_for_update(self, delivery_id: str) -> tuple[Delivery, Webhook] | None:
        """Return the current rows of a delivery and its webhook, locked; None if they were deleted."""
        query = sa.select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        row = self._session.execute(query.where(Delivery.id == delivery_id).with_for_update()).first()
        return (row[0], row[1]) if row is not None else None

    def give_up_pending(self, webhook: Webhook, error: str) -> None:
        """Give up all deliveries of a webhook that are still waiting."""
        waiting = sa.update(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.next_at.is_not(None))
        self._session.execute(waiting.values(next_at=None, error=error))

    def older(self, than: datetime, limit: int) -> Sequence[str]:
        """Return the ids of up to `limit` deliveries that are older than a time."""
        return self._session.scalars(sa.select(Delivery.id).where(Delivery.created_at < than).limit(limit)).all()

    def delete_deliveries(self, ids: Sequence[str]) -> None:
        """Delete deliveries, sent or not."""
        self._session.execute(sa.delete(Delivery).where(Delivery.id.in_(ids)))
