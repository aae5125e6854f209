"""Serves the application below a path of its host, if its public URL has a path."""

from collections.abc import Iterable
from urllib.parse import quote

from fastapi import APIRouter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import InvalidRequestError


class BasePathMiddleware:
    """Removes the base path from requests, where the proxy has not done so, and adds it to redirects.

    All other parts of the application know paths without it; `root_path` of the scope has it.
    """

    def __init__(self, app: ASGIApp, *, base: str):
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        is_whole = path == self._base or path.startswith(f"{self._base}/")
        inner = (path[len(self._base) :] or "/") if is_whole else path

        async def send_redirected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [
                    (name, self._redirected(value, scope) if name == b"location" else value) for name, value in headers
                ]
            await send(message)

        await self._app({**scope, "path": inner, "root_path": self._base}, receive, send_redirected)

    def _redirected(self, target: bytes, scope: Scope) -> bytes:
        """Return the target of a redirect within the application, relative to the path of the request.

        Proxies that remove the base path treat a target that begins with a slash differently: nginx does not change it,
        and Open OnDemand adds the base path. A relative target leads to the same page behind both. The root redirects
        to an absolute target, since it may have been requested without its slash.
        """
        if not target.startswith(b"/"):
            return target
        requested = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
        base = self._base.encode()
        inner = requested.removeprefix(base)
        if inner in (b"", b"/"):
            return base + target
        return (b"../" * (inner.count(b"/") - 1) or b"./") + target[1:]


def require_free(base: str, routers: Iterable[APIRouter]) -> None:
    """Require that no route begins as the base path does: whether a proxy removed it could not be told.

    Raises:
        InvalidRequestError: a route begins like this.
    """
    first = base.split("/")[1:2]
    if first and first[0] in {
        str(getattr(one, "path", "/")).split("/")[1] for router in routers for one in router.routes
    }:
        raise InvalidRequestError(
            f"TRAINYARD_PUBLIC_URL: the path {base} begins as paths of the service do; let it begin with another "
            "name, such as /trainyard",
            param="public_url",
        )
