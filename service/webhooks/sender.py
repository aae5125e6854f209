"""One message over the network: to the address that was judged, without redirects, within five seconds."""

import asyncio
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field

import httpx

from service.webhooks.service import Resolver
from service.webhooks.url_policy import ForbiddenTargetError, Target, choose_address, parse_target

SECONDS = 5.0
MAX_ANSWER = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """What came of it."""

    status: int | None = None
    error: str | None = None
    """None: it has arrived."""


@dataclass(frozen=True)
class Sender:
    """Sends, and never raises for what the other side does."""

    allowed: Collection[str]
    resolver: Resolver
    trust: ssl.SSLContext = field(default_factory=httpx.create_ssl_context)
    """Whose certificates are believed."""
    seconds: float = SECONDS

    async def send(self, url: str, headers: dict[str, str], body: str) -> Answer:
        """POST the body, judged again by what the name stands for now."""
        try:
            async with asyncio.timeout(self.seconds):
                target = parse_target(url, self.allowed)
                found = await asyncio.to_thread(self.resolver, target.host, target.port)
                return await self._post(target, choose_address(target, found), headers, body)
        except ForbiddenTargetError as error:
            return Answer(error=f"not sent: the URL {error}")
        except TimeoutError:
            return Answer(error=f"no answer within {self.seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Answer(error=f"{type(error).__name__}: {error}"[:256])

    async def _post(self, target: Target, address: str, headers: dict[str, str], body: str) -> Answer:
        host = f"[{address}]" if ":" in address else address
        url = f"{target.scheme}://{host}:{target.port}{target.path}"
        # No environment: a proxy would resolve the name once more.
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


async def _read(response: httpx.Response) -> Answer:
    """The status alone is kept: an answer of a machine that should not have been asked tells nobody anything."""
    seen = 0
    async for chunk in response.aiter_raw():
        seen += len(chunk)
        if seen > MAX_ANSWER:
            return Answer(response.status_code, f"the answer is longer than {MAX_ANSWER} bytes")
    if response.is_redirect:
        return Answer(response.status_code, "redirects are not followed")
    return Answer(response.status_code, None if response.is_success else f"answered {response.status_code}")
