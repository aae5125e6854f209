"""Tokens, the audit and webhooks: the calls of both clients, and the requests that they send."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from trainyard.client.calls import Call, Pages
from trainyard.client.ids import segment
from trainyard.client.wire import JSON, Request, given, model, page, several, time_text
from trainyard.contract.wire.access import (
    AuditResource,
    DeliveryResource,
    NewTokenResource,
    NewWebhookResource,
    TokenResource,
    WebhookResource,
)
from trainyard.contract.wire.pages import Page

M = TypeVar("M", bound=BaseModel)


def _create(path: str, kind: type[M], **body: Any) -> Request[M]:
    """Sent once: who lost the answer has lost the secret in it, and makes another."""
    return Request("POST", path, model(kind), headers=JSON, content=json.dumps(body).encode(), repeatable=False)


def create_token(
    name: str, *, role: str = "user", expires_in_days: int | None = None, may_run_code: bool = False
) -> Request[NewTokenResource]:
    """As an administrator, make a token. `token` in the answer is its secret, shown this once."""
    body = given(name=name, role=role, expires_in_days=expires_in_days, may_run_code=may_run_code)
    return _create("/v1/tokens", NewTokenResource, **body)


def create_webhook(url: str, *, statuses: str | Sequence[str] = (), jobs: str = "own") -> Request[NewWebhookResource]:
    """Be told of changes of status. `secret` in the answer, shown this once, is what messages are signed with."""
    return _create("/v1/webhooks", NewWebhookResource, url=url, statuses=several(statuses), jobs=jobs)


def tokens() -> Request[Page[TokenResource]]:
    """All tokens, newest first, without their secrets."""
    return page("/v1/tokens", TokenResource)


def own_token() -> Request[TokenResource]:
    """This client's own token."""
    return Request("GET", "/v1/tokens/self", model(TokenResource))


def revoke_token(token_id: str) -> Request[None]:
    """As an administrator, revoke a token; the next request with it is refused."""
    return Request("DELETE", f"/v1/tokens/{segment(token_id, 'token')}", lambda _: None)


def audit(*, limit: int | None = None, **filters: str | datetime | None) -> Request[Page[AuditResource]]:
    """Every change that somebody asked for, newest first.

    Args:
        limit: how many in all.
        filters: `actor`, `action`, `target`, `outcome`, `created_after`, `created_before`.
    """
    told = {name: time_text(value) for name, value in filters.items() if value is not None}
    return page("/v1/audit", AuditResource, limit, **told)


def webhooks() -> Request[Page[WebhookResource]]:
    """One's own webhooks, without their secrets; for administrators everyone's."""
    return page("/v1/webhooks", WebhookResource)


def webhook(webhook_id: str) -> Request[WebhookResource]:
    """One webhook, without its secret."""
    return Request("GET", _hook(webhook_id), model(WebhookResource))


def delete_webhook(webhook_id: str) -> Request[None]:
    """Delete a webhook, with what it was not told yet."""
    return Request("DELETE", _hook(webhook_id), lambda _: None)


def test_webhook(webhook_id: str) -> Request[DeliveryResource]:
    """Have a test message sent; `deliveries` shows what became of it."""
    return Request("POST", f"{_hook(webhook_id)}/test", model(DeliveryResource))


def deliveries(webhook_id: str) -> Request[Page[DeliveryResource]]:
    """What the webhook was told, or is to be, newest first."""
    return page(f"{_hook(webhook_id)}/deliveries", DeliveryResource)


def _hook(webhook_id: str) -> str:
    return f"/v1/webhooks/{segment(webhook_id, 'webhook')}"


class AccessCalls:
    """What both clients do about tokens, the audit and webhooks."""

    create_token = Call(create_token)
    tokens = Pages(tokens)
    whoami = Call(own_token)
    revoke_token = Call(revoke_token)
    audit = Pages(audit)
    create_webhook = Call(create_webhook)
    webhooks = Pages(webhooks)
    webhook = Call(webhook)
    delete_webhook = Call(delete_webhook)
    test_webhook = Call(test_webhook)
    deliveries = Pages(deliveries)
