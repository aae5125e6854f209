"""The requests of users about webhooks: create, delete and test."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from service.audit.log import set_audit_target
from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError
from service.core.ids import new_id
from service.db.engine import Database
from service.db.models import Delivery, Webhook
from service.jobs.service import require_change
from service.plugins.webhooks.outbox import enqueue_delivery
from service.plugins.webhooks.repository import WebhookRepository
from service.plugins.webhooks.signing import new_secret
from service.plugins.webhooks.url_policy import ForbiddenTargetError, choose_address, parse_target
from trainyard.contract.wire.access import WebhookRequest

MAX_WEBHOOKS = 20
"""Maximum number of webhooks per user."""

Resolver = Callable[[str, int, str], Sequence[str]]
"""Returns the addresses of a host and port, for a webhook of the named user. Raises OSError."""


def create(
    database: Database,
    principal: Principal,
    request: WebhookRequest,
    *,
    allowed: Collection[str],
    resolver: Resolver,
    now: datetime,
) -> Webhook:
    """Store a new webhook.

    Raises:
        InvalidRequestError: the URL is not allowed, or its host is unknown.
        ConflictError: the user has as many webhooks as allowed.
    """
    require_change(principal)
    try:
        target = parse_target(request.url, allowed)
        choose_address(target, resolver(target.host, target.port, principal.name))
    except ForbiddenTargetError as error:
        raise InvalidRequestError(str(error), param="url", code="forbidden_url") from None
    except OSError as error:
        message = f"names a host that cannot be resolved: {error.strerror or error}"
        raise InvalidRequestError(message, param="url", code="unknown_url") from None
    webhook = Webhook(
        id=new_id("whk", now),
        url=request.url,
        secret=new_secret(),
        statuses=list(request.statuses),
        jobs=request.jobs,
        format=request.format,
        created_by=principal.name,
        created_at=now,
        failures=0,
    )
    with database.write() as session:
        if WebhookRepository(session).count_owned(principal.name) >= MAX_WEBHOOKS:
            raise ConflictError(
                f"{principal.name} has {MAX_WEBHOOKS} webhooks, the limit per user", code="too_many_webhooks"
            )
        session.add(webhook)
        set_audit_target(webhook.id)
    return webhook


def delete(database: Database, principal: Principal, webhook_id: str) -> None:
    """Delete a webhook with its deliveries, sent or not."""
    require_change(principal)
    with database.write() as session:
        session.delete(WebhookRepository(session).get(webhook_id, principal.owner_filter))


def test(database: Database, principal: Principal, webhook_id: str, now: datetime) -> Delivery:
    """Enqueue a test delivery, also for a disabled webhook."""
    require_change(principal)
    with database.write() as session:
        repository = WebhookRepository(session)
        webhook = repository.get(webhook_id, principal.owner_filter)
        return enqueue_delivery(session, webhook, "test", now, {"webhook_id": webhook.id})
