"""Calls about API tokens, secrets, the audit log and webhooks."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from trainyard.client._async.transport import AsyncTransport
from trainyard.client.request import (
    JSON,
    Request,
    as_list,
    format_time,
    model,
    no_result,
    paged,
    segment,
    unpaged,
    without_none,
)
from trainyard.contract.wire.access import (
    TOKEN_DAYS,
    AuditResource,
    DeliveryResource,
    NewTokenResource,
    NewWebhookResource,
    SecretResource,
    TokenResource,
    UnixUserResource,
    WebhookResource,
)
from trainyard.contract.wire.sign_in import NonceResource, OidcUserResource, SignInCodeResource

M = TypeVar("M", bound=BaseModel)


_ANONYMOUS = {"Authorization": ""}
"""Replaces the client's token, which may belong to another service."""


def _create(path: str, kind: type[M], **body: Any) -> Request[M]:
    """Return a request that is not repeated: if its response is lost, the secret in it is lost, too."""
    return Request("POST", path, model(kind), headers=JSON, content=json.dumps(body).encode(), repeatable=False)


def _sign_in(step: str, kind: type[M], **body: Any) -> Request[M]:
    """Return a request of a sign-in, without the client's token."""
    request = _create(f"/v1/sign-in/{step}", kind, **body)
    return replace(request, headers={**request.headers, **_ANONYMOUS})


def _webhook_path(webhook_id: str) -> str:
    return f"/v1/webhooks/{segment(webhook_id, 'webhook')}"


def _secret_path(name: str) -> str:
    return f"/v1/secrets/{segment(name, 'secret')}"


class AsyncAccessCalls(AsyncTransport):
    """Calls about API tokens, the audit log and webhooks."""

    async def create_token(
        self,
        name: str,
        *,
        role: str = "user",
        expires_in_days: int | None = TOKEN_DAYS,
        may_run_code: bool = False,
        project: str | None = None,
    ) -> NewTokenResource:
        """Create an API token. Its secret, `token`, is returned only here. Administrators only.

        Args:
            expires_in_days: None: it never expires.
            project: a created project for which alone it is valid; None: everything that the role permits.
        """
        body = without_none(
            name=name, role=role, expires_in_days=expires_in_days, may_run_code=may_run_code, project=project
        )
        return await self._send(_create("/v1/tokens", NewTokenResource, **body))

    def tokens(self) -> AsyncIterator[TokenResource]:
        """Iterate over all tokens, newest first, without their secrets."""
        return self._pages(paged("/v1/tokens", TokenResource))

    async def whoami(self) -> TokenResource:
        """Return this client's own token."""
        return await self._send(Request("GET", "/v1/tokens/self", model(TokenResource)))

    async def create_sign_in_nonce(self) -> NonceResource:
        """Create a nonce for a sign-in by munge; the first step of `trainyard login`."""
        return await self._send(_sign_in("nonces", NonceResource))

    async def sign_in_with_munge(self, nonce: str, credential: str) -> NewTokenResource:
        """Create a token for the Unix account that made the credential with `munge`."""
        return await self._send(_sign_in("munge", NewTokenResource, nonce=nonce, credential=credential))

    async def create_sign_in_code(self) -> SignInCodeResource:
        """Create a code that signs a browser in as this client's user, once, within a minute: `trainyard open`."""
        return await self._send(_create("/v1/sign-in/codes", SignInCodeResource))

    async def exchange_sign_in_code(self, code: str) -> NewTokenResource:
        """Return the token for a code that a browser shows after a sign-in: `trainyard login --browser`."""
        return await self._send(_sign_in("tokens", NewTokenResource, code=code))

    async def revoke_own_token(self) -> None:
        """Revoke this client's own token, if it comes from a sign-in."""
        await self._send(Request("DELETE", "/v1/tokens/self", no_result))

    async def link_unix_user(self, name: str) -> UnixUserResource:
        """Let the Unix account of this name sign in as the user of this name. Administrators only."""
        path = f"/v1/unix-users/{segment(name, 'user')}"
        return await self._send(Request("PUT", path, model(UnixUserResource)))

    def oidc_users(self) -> AsyncIterator[OidcUserResource]:
        """Iterate over the users who have signed in by an OpenID provider. Administrators only."""
        return self._pages(paged("/v1/oidc-users", OidcUserResource))

    async def set_oidc_user(self, name: str, *, subject: str | None = None, disabled: bool = False) -> OidcUserResource:
        """Let a subject of the OpenID provider sign in as the user of this name, or disable that. Administrators only.

        Args:
            subject: None: the subject that the name has.
            disabled: Refuse the user at sign-in, and revoke the tokens of earlier sign-ins.
        """
        path, body = f"/v1/oidc-users/{segment(name, 'user')}", without_none(subject=subject, disabled=disabled)
        content = json.dumps(body).encode()
        return await self._send(Request("PUT", path, model(OidcUserResource), headers=JSON, content=content))

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token; the next request with it is rejected. Administrators only."""
        await self._send(Request("DELETE", f"/v1/tokens/{segment(token_id, 'token')}", no_result))

    async def set_secret(self, name: str, value: str) -> SecretResource:
        """Store a secret of yours. `environment.secrets` of a spec lists the secrets that the ranks get."""
        path, content = _secret_path(name), json.dumps({"value": value}).encode()
        return await self._send(Request("PUT", path, model(SecretResource), headers=JSON, content=content))

    async def secrets(self, *, user: str | None = None) -> list[SecretResource]:
        """Return your secrets, or as an administrator the secrets of a user, without their values."""
        return await self._list(unpaged("/v1/secrets", SecretResource, user=user))

    async def delete_secret(self, name: str, *, user: str | None = None) -> None:
        """Delete a secret of yours, or as an administrator a secret of a user."""
        await self._send(Request("DELETE", _secret_path(name), no_result, params=without_none(user=user)))

    def audit(self, *, limit: int | None = None, **filters: str | datetime | None) -> AsyncIterator[AuditResource]:
        """Iterate over the audit log, newest first.

        Args:
            limit: the number of entries over all pages; default: all.
            filters: `actor`, `action`, `target`, `outcome`, `created_after`, `created_before`.
        """
        params = {name: format_time(value) for name, value in filters.items() if value is not None}
        return self._pages(paged("/v1/audit", AuditResource, limit, **params))

    async def create_webhook(
        self, url: str, *, statuses: str | Sequence[str] = (), jobs: str = "own", format: str | None = None
    ) -> NewWebhookResource:
        """Create a webhook for status changes. The `secret` that signs its messages is returned only here.

        Args:
            format: `slack` for messages of `{"text": ...}`; default: the event with its job.
        """
        body = without_none(url=url, statuses=as_list(statuses), jobs=jobs, format=format)
        request = _create("/v1/webhooks", NewWebhookResource, **body)
        return await self._send(request)

    def webhooks(self) -> AsyncIterator[WebhookResource]:
        """Iterate over your webhooks, or as an administrator over all, without their secrets."""
        return self._pages(paged("/v1/webhooks", WebhookResource))

    async def webhook(self, webhook_id: str) -> WebhookResource:
        """Return a webhook, without its secret."""
        return await self._send(Request("GET", _webhook_path(webhook_id), model(WebhookResource)))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook and its pending deliveries."""
        await self._send(Request("DELETE", _webhook_path(webhook_id), no_result))

    async def test_webhook(self, webhook_id: str) -> DeliveryResource:
        """Send a test message; `deliveries` shows the result."""
        return await self._send(Request("POST", f"{_webhook_path(webhook_id)}/test", model(DeliveryResource)))

    def deliveries(self, webhook_id: str) -> AsyncIterator[DeliveryResource]:
        """Iterate over the webhook's past and pending deliveries, newest first."""
        return self._pages(paged(f"{_webhook_path(webhook_id)}/deliveries", DeliveryResource))
