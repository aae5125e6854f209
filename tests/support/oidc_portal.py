"""A service with an OpenID provider, and browsers that sign in there."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi.testclient import TestClient

from service.api.rate_limits import Rate, RateLimiter
from service.auth.sessions import csrf_of
from tests.support.oidc_provider import provider_settings
from tests.support.oidc_signer import Signer
from tests.support.world import FakeClock, World

SERVICE = "http://localhost"
ORIGIN = {"Origin": SERVICE}
PAGE = {"Accept": "text/html"}
_PROBLEM = re.compile(r'<p class="problem" role="alert">(.*?)</p>')


class Portal:
    """A service whose users sign in at a `Signer`."""

    def __init__(self, url: str, folder: Path, signer: Signer, clock: FakeClock, **settings: Any) -> None:
        self.signer = signer
        self.clock = clock
        self.world = World(url, folder, clock, **{**provider_settings(signer.url, SERVICE), **settings})
        self.world.app_state.sign_in_rate_limiter = RateLimiter(Rate(per_second=1000, burst=1000))

    def browser(self) -> TestClient:
        """A new browser."""
        return self.world.new_client(None)

    def start(self, browser: TestClient, target: str = "/jobs") -> str:
        """Start a sign-in and return the address at the provider."""
        answer = browser.get("/sign-in/oidc", params={"next": target}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def finish(self, browser: TestClient, answer: dict[str, str]) -> Any:
        """Come back from the provider with its answer."""
        return browser.get("/sign-in/oidc/callback", params=answer, headers=PAGE, follow_redirects=False)

    def sign_in(self, browser: TestClient, target: str = "/jobs") -> Any:
        """Sign in, and return the answer to the last request."""
        self.signer.now = self.clock()
        return self.finish(browser, self.signer.authorize(self.start(browser, target)))

    def signed_in(self) -> TestClient:
        """A browser in which a user has signed in."""
        browser = self.browser()
        answer = self.sign_in(browser)
        assert answer.status_code == 303, problem_of(answer)
        return browser

    def audit(self) -> list[dict[str, Any]]:
        """The entries about sign-ins, newest first."""
        entries = self.world.client.get("/v1/audit?limit=200").json()["data"]
        return [one for one in entries if one["action"] == "finish_oidc_sign_in"]


def user_of(browser: TestClient) -> tuple[str, str] | None:
    """Return the name and role of the user who is signed in; None: nobody."""
    answer = browser.get("/v1/tokens/self")
    return (answer.json()["name"], answer.json()["role"]) if answer.status_code == 200 else None


def problem_of(answer: Any) -> str:
    """Return the problem that the sign-in page shows."""
    matched = _PROBLEM.search(answer.text)
    return unescape(matched[1]) if matched else ""


def sign_out(browser: TestClient) -> Any:
    """Sign out with the button of a page."""
    form = {"csrf": csrf_of(str(browser.cookies["trainyard"]))}
    return browser.post("/sign-out", data=form, headers=ORIGIN, follow_redirects=False)


def path_of(address: str) -> str:
    """Return the path and query of an address."""
    url = urlsplit(address)
    return f"{url.path}?{url.query}"
