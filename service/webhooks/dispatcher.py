"""Sends due webhook deliveries: load, send, record. Only the leader runs it."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
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
from service.webhooks.signing import RETRY_DELAYS, next_delay, should_disable, signed_headers

log = structlog.get_logger("webhooks")

SECONDS = 2.0
"""Pause between two runs if nothing was due."""
_MAX_DUE = 500
_PER_WEBHOOK = 5
"""Deliveries of one webhook in a run; they are sent one after the other."""
_WEBHOOKS_PER_OWNER = 4
"""Webhooks of one user in a run; they are served at the same time."""
_GROUP_SECONDS = 5.0
"""A webhook gets no further delivery in a run after this time, so that slow receivers do not prolong it."""
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
            due = WebhookRepository(session).due(self.clock(), _MAX_DUE, _PER_WEBHOOK)
        if not due:
            return 0
        return sum(asyncio.run(self._send_all(fair_groups(due))))

    async def _send_all(self, groups: list[list[tuple[Delivery, Webhook]]]) -> list[int]:
        return await asyncio.gather(*(self._send_group(group) for group in groups))

    async def _send_group(self, group: list[tuple[Delivery, Webhook]]) -> int:
        """Send one webhook's deliveries in order; after a failure the others wait for the next run."""
        started = time.monotonic()
        for count, (delivery, webhook) in enumerate(group, start=1):
            now = self.clock()
            headers = signed_headers(webhook.secret, delivery.id, delivery.body, now)
            result = await self.sender.send(webhook.url, headers, delivery.body)
            self.failpoint("post.after-sending")
            await asyncio.to_thread(self._record, delivery.id, result, now)
            if result.error is not None or time.monotonic() - started > _GROUP_SECONDS:
                return count
        return len(group)

    def _record(self, delivery_id: str, result: SendResult, now: datetime) -> None:
        with self.lease.write(is_change=False) as session:
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
            session.flush()
            repository.put_off(webhook, now + (delay or RETRY_DELAYS[-1]))
            webhook.failures += 1
            webhook.failing_since = webhook.failing_since or now
            if webhook.disabled_at is None and should_disable(webhook.failures, webhook.failing_since, now):
                webhook.disabled_at = now
                session.flush()
                repository.give_up_pending(webhook, _DISABLED)
                AuditRepository(session).add(_disabled_entry(webhook, now))
                log.warning("webhook disabled", webhook=webhook.id, failures=webhook.failures)


def fair_groups(due: Sequence[tuple[Delivery, Webhook]]) -> list[list[tuple[Delivery, Webhook]]]:
    """Return the deliveries by webhook, of at most `_PER_OWNER` webhooks for each user."""
    groups: dict[str, list[tuple[Delivery, Webhook]]] = {}
    owners: Counter[str] = Counter()
    for delivery, webhook in due:
        if webhook.id not in groups:
            if owners[webhook.created_by] >= _WEBHOOKS_PER_OWNER:
                continue
            owners[webhook.created_by] += 1
        groups.setdefault(webhook.id, []).append((delivery, webhook))
    return list(groups.values())


def _disabled_entry(webhook: Webhook, now: datetime) -> AuditEntry:
    detail = {"failures": webhook.failures, "created_by": webhook.created_by}
    return AuditEntry(
        created_at=now, actor=SERVICE, action="disable_webhook", target=webhook.id, outcome="done", detail=detail
    )
