"""What people can do with webhooks."""

import socket
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from service.audit.log import about
from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, PermissionDeniedError
from service.core.ids import new_id
from service.db.engine import Database
from service.db.models import Delivery, Webhook
from service.webhooks.repository import WebhookRepository
from service.webhooks.signing import new_secret
from service.webhooks.url_policy import ForbiddenTargetError, choose_address, parse_target
from trainyard.contract.wire.access import WebhookRequest

MAX_WEBHOOKS = 20
"""Of one person."""

Resolver = Callable[[str, int], Sequence[str]]
"""The addresses of a host, each once. Raises OSError."""


def resolve_host(host: str, port: int) -> Sequence[str]:
    """By this machine's own means."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def create(
    database: Database,
    principal: Principal,
    wanted: WebhookRequest,
    *,
    allowed: Collection[str],
    resolver: Resolver,
    now: datetime,
) -> Webhook:
    """A webhook whose address may be called.

    Raises:
        InvalidRequestError: it may not, and why.
        ConflictError: the person has as many as one may have.
    """
    require_no_viewer(principal)
    try:
        target = parse_target(wanted.url, allowed)
        choose_address(target, resolver(target.host, target.port))
    except ForbiddenTargetError as error:
        raise InvalidRequestError(str(error), param="url", code="forbidden_url") from None
    except OSError as error:
        message = f"names a host that cannot be found: {error.strerror or error}"
        raise InvalidRequestError(message, param="url", code="unknown_url") from None
    webhook = Webhook(
        id=new_id("whk", now),
        url=wanted.url,
        secret=new_secret(),
        statuses=list(wanted.statuses),
        jobs=wanted.jobs,
        created_by=principal.name,
        created_at=now,
        failures=0,
    )
    with database.write() as session:
        repository = WebhookRepository(session)
        if repository.count_of(principal.name) >= MAX_WEBHOOKS:
            raise ConflictError(
                f"{principal.name} has {MAX_WEBHOOKS} webhooks, as many as one person may", code="too_many_webhooks"
            )
        repository.add(webhook)
        about(webhook.id)
    return webhook


def delete(database: Database, principal: Principal, webhook_id: str) -> None:
    """The webhook, with its messages, sent or not."""
    require_no_viewer(principal)
    with database.write() as session:
        repository = WebhookRepository(session)
        repository.delete(repository.get(webhook_id, owner_seen_by(principal)))


def test(database: Database, principal: Principal, webhook_id: str, now: datetime) -> Delivery:
    """A message that tells nothing, to be sent at once, to a disabled webhook too."""
    require_no_viewer(principal)
    with database.write() as session:
        repository = WebhookRepository(session)
        webhook = repository.get(webhook_id, owner_seen_by(principal))
        return repository.enqueue(webhook, "test", now, {"webhook_id": webhook.id})


def owner_seen_by(principal: Principal) -> str | None:
    """Administrators see everyone's webhooks, others their own."""
    return None if principal.role == "admin" else principal.name


def require_no_viewer(principal: Principal) -> None:
    """Raises PermissionDeniedError."""
    if principal.role == "viewer":
        raise PermissionDeniedError("a viewer's token can only read")
