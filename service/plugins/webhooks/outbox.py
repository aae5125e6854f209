"""The outbox of webhook deliveries: rows written in the transaction that changes a job, and sent later."""

import itertools
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.auth.repository import TokenRepository
from service.core.ids import new_id
from service.db.models import Delivery, Event, Job, Webhook
from service.projects.repository import ProjectRepository
from trainyard.contract.base import wire_time
from trainyard.contract.runtime import runtime_seconds


class Outbox:
    """Listens to changes."""

    def status_changed(self, session: Session, jobs: Sequence[Job], now: datetime) -> None:
        """Write a delivery of each job's new status for each enabled webhook that subscribes to it."""
        for job, webhook in itertools.product(jobs, _enabled(session)):
            subscribed = not webhook.statuses or job.status in webhook.statuses
            if subscribed and _may_receive(session, webhook, job, now):
                enqueue_delivery(session, webhook, "job.status", now, {"job": _job_payload(job, now)}, job.id)

    def alert_raised(self, session: Session, job: Job, event: Event, now: datetime) -> None:
        """Write a delivery of an alert of the job's program for each enabled webhook, whatever its statuses are."""
        alert = {"level": event.level, **{name: event.data[name] for name in ("title", "text")}}
        for webhook in _enabled(session):
            if _may_receive(session, webhook, job, now):
                payload = {"job": _job_payload(job, now), "alert": alert}
                enqueue_delivery(session, webhook, "job.alert", now, payload, job.id)

    def node_excluded(self, session: Session, node: dict[str, Any], now: datetime) -> None:
        """Write a delivery about a node that all jobs avoid, for each enabled webhook of an administrator for all
        jobs."""
        tokens = TokenRepository(session)
        for webhook in _enabled(session):
            if webhook.jobs == "all" and tokens.submitter_role(webhook.created_by, now) == "admin":
                enqueue_delivery(session, webhook, "cluster.node_excluded", now, {"node": node})


def _enabled(session: Session) -> Sequence[Webhook]:
    return session.scalars(sa.select(Webhook).where(Webhook.disabled_at.is_(None))).all()


def _may_receive(session: Session, webhook: Webhook, job: Job, now: datetime) -> bool:
    """Return whether a webhook gets the job's notifications. Jobs that its user does not see: only for
    administrators."""
    own = webhook.created_by == job.created_by
    if not own and webhook.jobs != "all":
        return False
    readers = ProjectRepository(session).readers((job.project,)).get(job.project) if job.project else None
    if (own or job.unix_uid is None) and (readers is None or webhook.created_by in readers):
        return True
    return TokenRepository(session).submitter_role(webhook.created_by, now) == "admin"


def enqueue_delivery(
    session: Session, webhook: Webhook, type_: str, now: datetime, payload: dict[str, Any], job_id: str | None = None
) -> Delivery:
    """Write a delivery that is due at once; its body is stored in the form in which it is signed and sent."""
    id_ = new_id("dlv", now)
    delivery = Delivery(
        id=id_,
        webhook_id=webhook.id,
        type=type_,
        job_id=job_id,
        body=delivery_body(id_, type_, now, payload),
        created_at=now,
        next_at=now,
        attempts=0,
    )
    session.add(delivery)
    return delivery


def delivery_body(delivery_id: str, type_: str, now: datetime, payload: dict[str, Any]) -> str:
    """Return the JSON body of a delivery."""
    body = {"id": delivery_id, "type": type_, "created_at": wire_time(now), **payload}
    return json.dumps(body, separators=(",", ":"))


def _job_payload(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "status_reason": job.status_reason,
        "status_message": job.status_message,
        "created_by": job.created_by,
        "metadata": job.labels,
        "sequence": job.sequence,
        "runtime_seconds": runtime_seconds(job.started_at, job.finished_at, now),
    }
