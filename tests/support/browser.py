"""A signed-in browser that records errors in the console and requests to other hosts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.support.chromium import chromium

# No sandbox: Chromium's own needs privileges that a container does not have. No GPU.
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_WITHOUT_NETWORK = "net::ERR_"


@contextmanager
def launched() -> Iterator[Browser]:
    """Raises ChromiumMissingError."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A browser window on one service."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    """Errors in the console."""
    foreign_requests: list[str] = field(default_factory=list)
    """URLs of requests to other hosts."""

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, token: str, path: str = "/jobs") -> Page:
        """Sign in with the form."""
        self.go(path)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(self.url + path)
        return self.page

    def forgive_lost_connections(self) -> None:
        """Remove the errors that Chromium logs for requests without a network; the page did not cause them."""
        self.errors = [error for error in self.errors if _WITHOUT_NETWORK not in error]

    def require_clean(self) -> None:
        assert not self.errors, self.errors
        assert not self.foreign_requests, self.foreign_requests


@contextmanager
def seated(
    browser: Browser, *, scheme: Literal["light", "dark"] = "light", size: tuple[int, int] = (1280, 800), **options: Any
) -> Iterator[BrowserContext]:
    """Yield a browser context: the cookies and cache of one user, shared by its windows."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": size[0], "height": size[1]},
        timezone_id="Europe/Berlin",
        locale="en-GB",
        accept_downloads=True,
        **options,
    )
    context.set_default_timeout(20_000)
    try:
        yield context
    finally:
        context.close()


@contextmanager
def window(context: BrowserContext, url: str) -> Iterator[Visit]:
    """Yield an empty window on a service."""
    visit = Visit(context.new_page(), url)
    home = urlsplit(url).netloc

    def request(sent: Request) -> None:
        parts = urlsplit(sent.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != home:
            visit.foreign_requests.append(sent.url)

    def console(message: ConsoleMessage) -> None:
        if message.type == "error":
            visit.errors.append(f"{message.text} ({message.location.get('url', '')})")

    visit.page.on("request", request)
    visit.page.on("console", console)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    try:
        yield visit
    finally:
        visit.page.close()


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    *,
    scheme: Literal["light", "dark"] = "light",
    size: tuple[int, int] = (1280, 800),
    **options: Any,
) -> Iterator[Visit]:
    """Yield a window with new cookies and an empty cache."""
    with seated(browser, scheme=scheme, size=size, **options) as context, window(context, url) as visit:
        yield visit
