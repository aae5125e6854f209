"""Sends due webhook deliveries: load, send, record. Only the leader runs it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from service.audit.log import SERVICE
from service.core.clock import Clock
from service.core.errors import LeaseLostError, UnavailableError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.thread_slots import ThreadSlots
from service.db.engine import Database
from service.db.leader_lease import LeaderLease
from service.db.models import AuditEntry, Delivery, Webhook
from service.plugins.webhooks.formats import message_body
from service.plugins.webhooks.repository import WebhookRepository
from service.plugins.webhooks.sender import Sender, SendResult
from service.plugins.webhooks.signing import RETRY_DELAYS, next_delay, should_disable, signed_headers
from trainyard.contract.base import sanitize

log = structlog.get_logger("webhooks")

SECONDS = 2.0
"""Pause between two runs if nothing was due."""
_POLL_SECONDS = 0.5
"""Interval at which a run looks for further deliveries while receivers have yet to answer."""
_MAX_DUE = 500
_PER_WEBHOOK = 5
"""Maximum number of a webhook's deliveries in a group; they are sent one after the other."""
_WEBHOOKS_PER_OWNER = 4
"""Maximum number of a user's webhooks that are served at the same time."""
_GROUP_SECONDS = 5.0
"""A group ends after this time, so that a slow receiver does not occupy its owner's share."""
_MAX_ERROR = 256
_MAX_PUT_ASIDE = 10_000
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
    is_stopping: Callable[[], bool] = lambda: False
    """Whether a run must send nothing more."""
    service_url: str = ""
    """Where users open the pages of jobs, for links in messages."""
    _slots: ThreadSlots = field(default_factory=lambda: ThreadSlots(each=4, total=16))
    """Threads that query and record."""
    _put_aside: set[str] = field(default_factory=set)
    """Deliveries whose result could not be recorded; sending them again would repeat the message without end."""

    def run_once(self) -> int:
        """Send the due deliveries, including deliveries that become due meanwhile, and return how many were sent.

        Raises:
            LeaseLostError: another service has become the leader.
            UnavailableError: the database is unavailable.
        """
        due = self._due()
        return asyncio.run(self._send_all(due)) if due else 0

    def _due(self) -> list[tuple[Delivery, Webhook]]:
        if not self.lease.is_leader or self.is_stopping():
            return []
        with self.database.read() as session:
            due = WebhookRepository(session).due(self.clock(), _MAX_DUE, _PER_WEBHOOK)
        return [(delivery, webhook) for delivery, webhook in due if delivery.id not in self._put_aside]

    async def _send_all(self, due: Sequence[tuple[Delivery, Webhook]]) -> int:
        """Serve each webhook in a task of its own, so that no receiver waits for the answer of another."""
        sent = 0
        tasks: dict[asyncio.Task[int], Webhook] = {}
        while True:
            for group in fair_groups(due, tasks.values()):
                tasks[asyncio.create_task(self._send_group(group))] = group[0][1]
            if not tasks:
                return sent
            done, _ = await asyncio.wait(tasks, timeout=_POLL_SECONDS)
            sent += sum(task.result() for task in done)
            tasks = {task: webhook for task, webhook in tasks.items() if task not in done}
            due = await self._slots.run(SERVICE, self._due)

    async def _send_group(self, group: list[tuple[Delivery, Webhook]]) -> int:
        """Send deliveries of a webhook in order; after a failure the others wait for a later run."""
        started = time.monotonic()
        for count, (delivery, webhook) in enumerate(group, start=1):
            now = self.clock()
            result = await self._send(delivery, webhook, now)
            self.failpoint("post.after-sending")
            recorded = await self._slots.run(webhook.created_by, self._try_record, delivery.id, result, now)
            if not recorded or result.error is not None or time.monotonic() - started > _GROUP_SECONDS:
                return count
        return len(group)

    async def _send(self, delivery: Delivery, webhook: Webhook, now: datetime) -> SendResult:
        """Send a delivery. Any error is a failure of this webhook, and must not end the run."""
        try:
            body = message_body(delivery.body, webhook.format, self.service_url)
            headers = signed_headers(webhook.secret, delivery.id, body, now)
            result = await self.sender.send(webhook.url, headers, body, webhook.created_by)
        except Exception as error:
            log.exception("delivery failed", webhook=webhook.id, delivery=delivery.id)
            result = SendResult(error=f"not sent: {type(error).__name__}: {error}")
        # A receiver chooses parts of the text.
        return replace(result, error=result.error and sanitize(result.error)[:_MAX_ERROR])

    def _try_record(self, delivery_id: str, result: SendResult, now: datetime) -> bool:
        try:
            self._record(delivery_id, result, now)
        except (LeaseLostError, UnavailableError):
            raise
        except Exception:
            log.exception("the result of a delivery cannot be recorded", delivery=delivery_id)
            if len(self._put_aside) < _MAX_PUT_ASIDE:
                self._put_aside.add(delivery_id)
            return False
        return True

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
                session.add(_disabled_entry(webhook, now))
                log.warning("webhook disabled", webhook=webhook.id, failures=webhook.failures)


def fair_groups(
    due: Sequence[tuple[Delivery, Webhook]], served: Collection[Webhook] = ()
) -> list[list[tuple[Delivery, Webhook]]]:
    """Return the deliveries by webhook, of at most `_WEBHOOKS_PER_OWNER` webhooks for each user.

    Args:
        served: The webhooks that are served now. They count for their owners, and get no second group.
    """
    groups: dict[str, list[tuple[Delivery, Webhook]]] = {}
    owners = Counter(webhook.created_by for webhook in served)
    skipped = {webhook.id for webhook in served}
    for delivery, webhook in due:
        if webhook.id not in groups:
            if webhook.id in skipped or owners[webhook.created_by] >= _WEBHOOKS_PER_OWNER:
                continue
            owners[webhook.created_by] += 1
        groups.setdefault(webhook.id, []).append((delivery, webhook))
    return list(groups.values())


def _disabled_entry(webhook: Webhook, now: datetime) -> AuditEntry:
    detail = {"failures": webhook.failures, "created_by": webhook.created_by}
    return AuditEntry(
        created_at=now, actor=SERVICE, action="disable_webhook", target=webhook.id, outcome="done", detail=detail
    )
