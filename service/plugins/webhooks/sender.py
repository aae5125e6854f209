"""Sends a delivery over HTTP: to the checked address, without redirects, within five seconds."""

import asyncio
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field

import httpx

from service.core.thread_slots import ThreadSlots
from service.plugins.webhooks.service import Resolver
from service.plugins.webhooks.url_policy import ForbiddenTargetError, Target, choose_address, parse_target

SECONDS = 5.0
MAX_RESPONSE_BYTES = 64 * 1024


@dataclass(frozen=True)
class SendResult:
    """The result of sending a delivery."""

    status: int | None = None
    error: str | None = None
    """None: the receiver answered with 2xx."""


@dataclass(frozen=True)
class Sender:
    """Sends deliveries. Failures of the receiver are results, not exceptions."""

    allowed: Collection[str]
    resolver: Resolver
    trust: ssl.SSLContext = field(default_factory=httpx.create_ssl_context)
    """The certificate authorities to trust."""
    seconds: float = SECONDS
    slots: ThreadSlots = field(default_factory=lambda: ThreadSlots(each=4, total=16, seconds=SECONDS))
    """Threads that resolve names, so that slow answers do not delay the queries of the dispatcher."""

    async def send(self, url: str, headers: dict[str, str], body: str, owner: str) -> SendResult:
        """POST the body for a user, after the host's current addresses were checked again."""
        try:
            async with asyncio.timeout(self.seconds):
                target = parse_target(url, self.allowed)
                addresses = await self.slots.run(owner, self.resolver, target.host, target.port, owner)
                return await self._post(target, choose_address(target, addresses), headers, body)
        except ForbiddenTargetError as error:
            return SendResult(error=f"not sent: the URL {error}")
        except TimeoutError:
            return SendResult(error=f"no answer within {self.seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return SendResult(error=f"{type(error).__name__}: {error}")

    async def _post(self, target: Target, address: str, headers: dict[str, str], body: str) -> SendResult:
        host = f"[{address}]" if ":" in address else address
        url = f"{target.scheme}://{host}:{target.port}{target.path}"
        # Proxies from the environment are ignored: they would resolve the name again.
        async with httpx.AsyncClient(
            verify=self.trust, trust_env=False, follow_redirects=False, timeout=self.seconds
        ) as client:
            request = client.build_request("POST", url, headers={**headers, "host": target.authority}, content=body)
            request.extensions["sni_hostname"] = target.host
            response = await client.send(request, stream=True)
            try:
                return await _read(response)
            finally:
                await response.aclose()


async def _read(response: httpx.Response) -> SendResult:
    """Return only the status: the body of a host that should not have been reached must not leak."""
    size = 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            return SendResult(response.status_code, f"the response is longer than {MAX_RESPONSE_BYTES} bytes")
    if response.is_redirect:
        return SendResult(response.status_code, "redirects are not followed")
    return SendResult(response.status_code, None if response.is_success else f"answered {response.status_code}")
