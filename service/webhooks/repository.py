"""All SQL about webhooks and their messages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.core.errors import NotFoundError
from service.core.ids import new_id
from service.db.access_models import Delivery, Webhook
from service.db.models import Job
from service.webhooks.signing import message
from trainyard.contract.spec.redaction import redact


class WebhookRepository:
    """Webhooks and messages within one session."""

    def __init__(self, session: Session):
        self._session = session

    def add(self, webhook: Webhook) -> None:
        self._session.add(webhook)

    def get(self, webhook_id: str, owner: str | None) -> Webhook:
        """The webhook, if it is the owner's; None sees everyone's.

        Raises:
            NotFoundError: there is none that this person sees.
        """
        webhook = self._session.get(Webhook, webhook_id)
        if webhook is None or (owner is not None and webhook.created_by != owner):
            raise NotFoundError(f"there is no webhook {webhook_id!r}", code="webhook_not_found", param="webhook_id")
        return webhook

    def delete(self, webhook: Webhook) -> None:
        """With its messages."""
        self._session.delete(webhook)

    def count_of(self, owner: str) -> int:
        query = sa.select(sa.func.count()).select_from(Webhook).where(Webhook.created_by == owner)
        return self._session.scalar(query) or 0

    def page(
        self, owner: str | None, *, after: str | None, limit: int, descending: bool
    ) -> tuple[Sequence[Webhook], bool]:
        """One page by time of creation, of one person's or of all, and whether there is more."""
        query = sa.select(Webhook)
        if owner is not None:
            query = query.where(Webhook.created_by == owner)
        return self._cut(query, Webhook.id, after, limit, descending)

    def deliveries(
        self, webhook: Webhook, *, after: str | None, limit: int, descending: bool
    ) -> tuple[Sequence[Delivery], bool]:
        """One page by time of creation, and whether there is more."""
        query = sa.select(Delivery).where(Delivery.webhook_id == webhook.id)
        return self._cut(query, Delivery.id, after, limit, descending)

    def _cut(
        self, query: sa.Select[Any], column: Any, after: str | None, limit: int, descending: bool
    ) -> tuple[Sequence[Any], bool]:
        if after is not None:
            query = query.where(column < after if descending else column > after)
        rows = self._session.scalars(query.order_by(column.desc() if descending else column.asc()).limit(limit + 1))
        found = list(rows)
        return found[:limit], len(found) > limit

    def tell(self, job: Job, now: datetime) -> None:
        """Write a message about the job's new status for each webhook that wants it."""
        for webhook in self._session.scalars(sa.select(Webhook).where(Webhook.disabled_at.is_(None))):
            wanted = not webhook.statuses or job.status in webhook.statuses
            if wanted and (webhook.jobs == "all" or webhook.created_by == job.created_by):
                self.enqueue(webhook, "job.status", now, {"job": _about(job)}, job.id)

    def enqueue(
        self, webhook: Webhook, kind: str, now: datetime, about: dict[str, Any], job_id: str | None = None
    ) -> Delivery:
        """Write a message, to be sent at once."""
        id_ = new_id("dlv", now)
        delivery = Delivery(
            id=id_,
            webhook_id=webhook.id,
            type=kind,
            job_id=job_id,
            body=message(kind, id_, now, about),
            created_at=now,
            next_at=now,
            attempts=0,
        )
        self._session.add(delivery)
        return delivery

    def due(self, now: datetime, limit: int) -> list[tuple[Delivery, Webhook]]:
        """What is to be sent, longest due first."""
        query = sa.select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        query = query.where(Delivery.next_at <= now).order_by(Delivery.next_at, Delivery.id).limit(limit)
        return [(delivery, webhook) for delivery, webhook in self._session.execute(query)]

    def pair(self, delivery_id: str) -> tuple[Delivery, Webhook] | None:
        """A message and its webhook as they are now; None: deleted."""
        query = sa.select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        row = self._session.execute(query.where(Delivery.id == delivery_id).with_for_update()).first()
        return (row[0], row[1]) if row is not None else None

    def give_up(self, webhook: Webhook, error: str) -> None:
        """Send nothing of what still waits."""
        waiting = sa.update(Delivery).where(Delivery.webhook_id == webhook.id, Delivery.next_at.is_not(None))
        self._session.execute(waiting.values(next_at=None, error=error))

    def older(self, than: datetime, limit: int) -> Sequence[str]:
        """Some of the messages that are."""
        return self._session.scalars(sa.select(Delivery.id).where(Delivery.created_at < than).limit(limit)).all()

    def forget(self, ids: Sequence[str]) -> None:
        self._session.execute(sa.delete(Delivery).where(Delivery.id.in_(ids)))


def _about(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "status_reason": job.status_reason,
        "status_message": job.status_message,
        "created_by": job.created_by,
        "metadata": redact(job.labels),
        "sequence": job.sequence,
    }
