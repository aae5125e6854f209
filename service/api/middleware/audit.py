"""Completes the audit log before a response starts."""

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.audit.log import CURRENT_REQUEST, AuditLog


class AuditMiddleware:
    """Writes the audit entry of a request that no transaction recorded."""

    def __init__(self, app: ASGIApp, *, audit_log: AuditLog):
        self._app = app
        self._audit_log = audit_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = CURRENT_REQUEST.get() if scope["type"] == "http" else None
        if context is None:
            await self._app(scope, receive, send)
            return

        async def send_after_entry(message: Message) -> None:
            if message["type"] == "http.response.start" and self._audit_log.needs_entry(context, message["status"]):
                # Only then: a change to a thread and back is a notable part of a request's cost.
                await run_in_threadpool(self._audit_log.record_response, context, message["status"])
            await send(message)

        await self._app(scope, receive, send_after_entry)
