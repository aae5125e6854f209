"""Tokens, the audit and webhooks: the calls of both clients, and the requests that they send."""

import json
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from trainyard.client.ids import segment
from trainyard.client.requests import PAGE_SIZE, Request, _given, _model, _page
from trainyard.contract.access import (
    AuditResource,
    DeliveryResource,
    NewTokenResource,
    NewWebhookResource,
    TokenResource,
    WebhookResource,
)
from trainyard.contract.resources import Page

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_JSON = {"Content-Type": "application/json"}


def _create(path: str, model: type[M], **body: Any) -> Request[M]:
    """Sent once: who lost the answer has lost the secret in it, and makes another."""
    return Request("POST", path, _model(model), headers=_JSON, content=json.dumps(body).encode(), repeatable=False)


def create_token(name: str, role: str, expires_in_days: int | None, may_run_code: bool) -> Request[NewTokenResource]:
    body = _given(name=name, role=role, expires_in_days=expires_in_days, may_run_code=may_run_code)
    return _create("/v1/tokens", NewTokenResource, **body)


def create_webhook(url: str, statuses: Sequence[str], jobs: str) -> Request[NewWebhookResource]:
    return _create("/v1/webhooks", NewWebhookResource, url=url, statuses=list(statuses), jobs=jobs)


def tokens() -> Request[Page[TokenResource]]:
    return _page("/v1/tokens", TokenResource)


def own_token() -> Request[TokenResource]:
    return Request("GET", "/v1/tokens/self", _model(TokenResource))


def revoke_token(token_id: str) -> Request[None]:
    return Request("DELETE", f"/v1/tokens/{segment(token_id, 'token')}", lambda _: None)


def audit(limit: int | None, **filters: str | None) -> Request[Page[AuditResource]]:
    return _page("/v1/audit", AuditResource, min(limit or PAGE_SIZE, PAGE_SIZE), **filters)


def webhooks() -> Request[Page[WebhookResource]]:
    return _page("/v1/webhooks", WebhookResource)


def delete_webhook(webhook_id: str) -> Request[None]:
    return Request("DELETE", _hook(webhook_id), lambda _: None)


def test_webhook(webhook_id: str) -> Request[DeliveryResource]:
    return Request("POST", f"{_hook(webhook_id)}/test", _model(DeliveryResource))


def deliveries(webhook_id: str) -> Request[Page[DeliveryResource]]:
    return _page(f"{_hook(webhook_id)}/deliveries", DeliveryResource)


def _hook(webhook_id: str) -> str:
    return f"/v1/webhooks/{segment(webhook_id, 'webhook')}"


class _Sends(Protocol):
    def _send(self, request: Request[T]) -> T: ...

    def _items(self, request: Request[Page[T]]) -> Iterator[T]: ...


class AccessCalls:
    """What `Client` does about tokens, the audit and webhooks."""

    def create_token(
        self: _Sends, name: str, *, role: str = "user", expires_in_days: int | None = None, may_run_code: bool = False
    ) -> NewTokenResource:
        """As an administrator, make a token. `token` in the answer is its secret, shown this once."""
        return self._send(create_token(name, role, expires_in_days, may_run_code))

    def tokens(self: _Sends) -> Iterator[TokenResource]:
        """All tokens, newest first, without their secrets."""
        return self._items(tokens())

    def whoami(self: _Sends) -> TokenResource:
        """This client's own token."""
        return self._send(own_token())

    def revoke_token(self: _Sends, token_id: str) -> None:
        self._send(revoke_token(token_id))

    def audit(self: _Sends, *, limit: int | None = None, **filters: str | None) -> Iterator[AuditResource]:
        """Every change that somebody asked for, newest first.

        Args:
            limit: how many in all.
            filters: `actor`, `action`, `target`, `outcome`, `created_after`, `created_before`.
        """
        for count, entry in enumerate(self._items(audit(limit, **filters)), start=1):
            yield entry
            if count == limit:
                return

    def create_webhook(
        self: _Sends, url: str, *, statuses: Sequence[str] = (), jobs: str = "own"
    ) -> NewWebhookResource:
        """Be told of changes of status. `secret` in the answer, shown this once, is what messages are signed with."""
        return self._send(create_webhook(url, statuses, jobs))

    def webhooks(self: _Sends) -> Iterator[WebhookResource]:
        return self._items(webhooks())

    def delete_webhook(self: _Sends, webhook_id: str) -> None:
        self._send(delete_webhook(webhook_id))

    def test_webhook(self: _Sends, webhook_id: str) -> DeliveryResource:
        """Have a message sent that tells nothing; `deliveries` shows what became of it."""
        return self._send(test_webhook(webhook_id))

    def deliveries(self: _Sends, webhook_id: str) -> Iterator[DeliveryResource]:
        """What the webhook was told, or is to be, newest first."""
        return self._items(deliveries(webhook_id))


class _SendsAsync(Protocol):
    def _send(self, request: Request[T]) -> Awaitable[T]: ...

    def _items(self, request: Request[Page[T]]) -> AsyncIterator[T]: ...


class AsyncAccessCalls:
    """The same for `AsyncClient`."""

    async def create_token(
        self: _SendsAsync,
        name: str,
        *,
        role: str = "user",
        expires_in_days: int | None = None,
        may_run_code: bool = False,
    ) -> NewTokenResource:
        return await self._send(create_token(name, role, expires_in_days, may_run_code))

    def tokens(self: _SendsAsync) -> AsyncIterator[TokenResource]:
        return self._items(tokens())

    async def whoami(self: _SendsAsync) -> TokenResource:
        return await self._send(own_token())

    async def revoke_token(self: _SendsAsync, token_id: str) -> None:
        await self._send(revoke_token(token_id))

    async def audit(self: _SendsAsync, *, limit: int | None = None, **filters: Any) -> AsyncIterator[AuditResource]:
        count = 0
        async for entry in self._items(audit(limit, **filters)):
            yield entry
            count += 1
            if count == limit:
                return

    async def create_webhook(
        self: _SendsAsync, url: str, *, statuses: Sequence[str] = (), jobs: str = "own"
    ) -> NewWebhookResource:
        return await self._send(create_webhook(url, statuses, jobs))

    def webhooks(self: _SendsAsync) -> AsyncIterator[WebhookResource]:
        return self._items(webhooks())

    async def delete_webhook(self: _SendsAsync, webhook_id: str) -> None:
        await self._send(delete_webhook(webhook_id))

    async def test_webhook(self: _SendsAsync, webhook_id: str) -> DeliveryResource:
        return await self._send(test_webhook(webhook_id))

    def deliveries(self: _SendsAsync, webhook_id: str) -> AsyncIterator[DeliveryResource]:
        return self._items(deliveries(webhook_id))
