"""Sends what webhooks are to be told, in the service that reconciles and no other: load, send, record."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.api.dependencies import Services
from service.audit.log import SERVICE
from service.auth.repository import AuditRepository
from service.db.access_models import AuditEntry, Delivery, Webhook
from service.db.leader_lease import LeaderLease
from service.webhooks.repository import WebhookRepository
from service.webhooks.sender import Answer, Sender
from service.webhooks.signing import is_hopeless, next_delay, signed_headers

log = structlog.get_logger("webhooks")

_AT_ONCE = 100
SECONDS = 2.0
"""Between two rounds, where nothing was due."""
_DISABLED = "the webhook is disabled"


@dataclass
class WebhookDispatcher:
    """One round is one call of `run_once`. A message whose answer is lost is sent again: at least once."""

    services: Services
    lease: LeaderLease
    sender: Sender

    def run_once(self) -> int:
        """Send what is due; how many were tried.

        Raises:
            LeaseLostError: another service does it now.
            UnavailableError: the database does not answer.
        """
        if not self.lease.is_leader:
            return 0
        with self.services.database.read() as session:
            due = WebhookRepository(session).due(self.services.clock(), _AT_ONCE)
        by_webhook: dict[str, list[tuple[Delivery, Webhook]]] = defaultdict(list)
        for delivery, webhook in due:
            by_webhook[webhook.id].append((delivery, webhook))
        if not due:
            return 0
        return sum(asyncio.run(self._send_all(list(by_webhook.values()))))

    async def _send_all(self, groups: list[list[tuple[Delivery, Webhook]]]) -> list[int]:
        return await asyncio.gather(*(self._send_each(group) for group in groups))

    async def _send_each(self, group: list[tuple[Delivery, Webhook]]) -> int:
        """One receiver's messages one by one; after the first failure the rest waits for the next round."""
        for count, (delivery, webhook) in enumerate(group, start=1):
            now = self.services.clock()
            headers = signed_headers(webhook.secret, delivery.id, delivery.body, now)
            answer = await self.sender.send(webhook.url, headers, delivery.body)
            self.services.failpoint("post.after-sending")
            await asyncio.to_thread(self._record, delivery.id, answer, now)
            if answer.error is not None:
                return count
        return len(group)

    def _record(self, delivery_id: str, answer: Answer, now: datetime) -> None:
        with self.lease.write(counts=False) as session:
            repository = WebhookRepository(session)
            pair = repository.pair(delivery_id)
            if pair is None:
                return
            delivery, webhook = pair
            delivery.attempts += 1
            delivery.answer_status, delivery.error = answer.status, answer.error
            if answer.error is None:
                delivery.delivered_at, delivery.next_at = now, None
                webhook.failures, webhook.failing_since, webhook.disabled_at = 0, None, None
                return
            delay = next_delay(delivery.attempts)
            delivery.next_at = now + delay if delay is not None and webhook.disabled_at is None else None
            webhook.failures += 1
            webhook.failing_since = webhook.failing_since or now
            if webhook.disabled_at is None and is_hopeless(webhook.failures, webhook.failing_since, now):
                webhook.disabled_at = now
                session.flush()
                repository.give_up(webhook, _DISABLED)
                AuditRepository(session).add(_disabled(webhook, now))
                log.warning("webhook disabled", webhook=webhook.id, failures=webhook.failures)


def _disabled(webhook: Webhook, now: datetime) -> AuditEntry:
    detail = {"failures": webhook.failures, "created_by": webhook.created_by}
    return AuditEntry(
        created_at=now, actor=SERVICE, action="disable_webhook", target=webhook.id, outcome="done", detail=detail
    )
