"""Sends due webhook deliveries: load, send, record. Only the leader runs it."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import structlog

from service.audit.log import SERVICE
from service.audit.repository import AuditRepository
from service.core.clock import Clock
from service.core.failpoints import Failpoint, no_failpoint
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import AuditEntry, Delivery, Webhook
from service.webhooks.repository import WebhookRepository
from service.webhooks.sender import Sender, SendResult
from service.webhooks.signing import next_delay, should_disable, signed_headers

log = structlog.get_logger("webhooks")

SECONDS = 2.0
"""Pause between two runs if nothing was due."""
_BATCH = 100
_DISABLED = "the webhook is disabled"


@dataclass
class WebhookDispatcher:
    """Delivers at least once: a delivery whose result was not recorded is sent again."""

    database: Database
    lease: LeaderLease
    clock: Clock
    sender: Sender
    failpoint: Failpoint = no_failpoint
    """The failpoints at which a test can end the process."""

    def run_once(self) -> int:
        """Send the due deliveries and return how many were sent.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database is unavailable.
        """
        if not self.lease.is_leader:
            return 0
        with self.database.read() as session:
            due = WebhookRepository(session).due(self.clock(), _BATCH)
        by_webhook: dict[str, list[tuple[Delivery, Webhook]]] = defaultdict(list)
        for delivery, webhook in due:
            by_webhook[webhook.id].append((delivery, webhook))
        if not due:
            return 0
        return sum(asyncio.run(self._send_all(list(by_webhook.values()))))

    async def _send_all(self, groups: list[list[tuple[Delivery, Webhook]]]) -> list[int]:
        return await asyncio.gather(*(self._send_group(group) for group in groups))

    async def _send_group(self, group: list[tuple[Delivery, Webhook]]) -> int:
        """Send one webhook's deliveries in order; after a failure the others wait for the next run."""
        for count, (delivery, webhook) in enumerate(group, start=1):
            now = self.clock()
            headers = signed_headers(webhook.secret, delivery.id, delivery.body, now)
            result = await self.sender.send(webhook.url, headers, delivery.body)
            self.failpoint("post.after-sending")
            await asyncio.to_thread(self._record, delivery.id, result, now)
            if result.error is not None:
                return count
        return len(group)

    def _record(self, delivery_id: str, result: SendResult, now: datetime) -> None:
        with self.lease.write(counts=False) as session:
            repository = WebhookRepository(session)
            pair = repository.get_delivery_for_update(delivery_id)
            if pair is None:
                return
            delivery, webhook = pair
            delivery.attempts += 1
            delivery.answer_status, delivery.error = result.status, result.error
            if result.error is None:
                delivery.delivered_at, delivery.next_at = now, None
                webhook.failures, webhook.failing_since, webhook.disabled_at = 0, None, None
                return
            delay = next_delay(delivery.attempts)
            delivery.next_at = now + delay if delay is not None and webhook.disabled_at is None else None
            webhook.failures += 1
            webhook.failing_since = webhook.failing_since or now
            if webhook.disabled_at is None and should_disable(webhook.failures, webhook.failing_since, now):
                webhook.disabled_at = now
                session.flush()
                repository.give_up_pending(webhook, _DISABLED)
                AuditRepository(session).add(_disabled_entry(webhook, now))
                log.warning("webhook disabled", webhook=webhook.id, failures=webhook.failures)


def _disabled_entry(webhook: Webhook, now: datetime) -> AuditEntry:
    detail = {"failures": webhook.failures, "created_by": webhook.created_by}
    return AuditEntry(
        created_at=now, actor=SERVICE, action="disable_webhook", target=webhook.id, outcome="done", detail=detail
    )
