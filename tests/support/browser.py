"""Chromium with a signed-in user; records errors of pages and requests to other hosts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, sync_playwright

from tests.support.chromium import chromium

# There is no GPU, and Chromium's own sandbox needs privileges that a container does not have.
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_ONE_HOST = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
"""No other host has an address, so that a request to one fails. To record all requests would cost more than to answer
them."""
_OTHER_HOST = "net::ERR_NAME_NOT_RESOLVED"
_NETWORK_ERROR = "net::ERR_"
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Chromium closes all its connections, even to this host, when any network interface of the machine gets or loses an
address, and Docker's do with each container."""
MEASURE_SHIFTS = """
window.layoutShift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.layoutShift += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""
"""A script that adds up what moves on a page without a recent click or key."""
_LOADS = 10
"""Attempts to load a page while the interfaces change."""


@contextmanager
def start_chromium() -> Iterator[Browser]:
    """Start Chromium.

    Raises:
        ChromiumMissingError: Chromium is neither installed nor installable.
    """
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*_FLAGS, _ONE_HOST])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A browser tab on one service."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    """Errors in the console, and exceptions of scripts."""

    def go(self, path: str) -> Page:
        """Open a page of the service, again where the machine's network changed while it loaded."""
        # Chromium paints only the tab in front; scripts of others wait for their frames.
        self.page.bring_to_front()
        for _ in range(_LOADS):
            try:
                self.page.goto(self.url + path)
            except Error as error:
                if _NETWORK_CHANGED not in str(error):
                    raise
                continue
            if not self._network_changed():
                break
            self.ignore_errors(_NETWORK_CHANGED)
        return self.page

    def sign_in(self, token: str, path: str = "/jobs") -> Page:
        """Open a page, and sign in with the form to which it redirects."""
        self.go(path)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(self.url + path)
        return self.go(path) if self._network_changed() else self.page

    def ignore_errors(self, text: str) -> None:
        """Remove the errors that contain a text. Chromium logs each failed request, even if the page handles it."""
        self.errors = [error for error in self.errors if text not in error]

    def ignore_network_errors(self) -> None:
        """Remove the errors of requests to the service for which there was no network."""
        self.errors = [error for error in self.errors if _NETWORK_ERROR not in error or _OTHER_HOST in error]

    def assert_clean(self) -> None:
        """Fail if there was an error or a request to another host, for which Chromium logs an error too.

        A request that ended because the network changed does not count: pages repeat those that they need.
        """
        self.ignore_errors(_NETWORK_CHANGED)
        assert not self.errors, str(self.errors)  # the list is empty when the message is shown

    def _network_changed(self) -> bool:
        return any(_NETWORK_CHANGED in error for error in self.errors)

    @contextmanager
    def lent(self) -> Iterator["Visit"]:
        """Lend the tab to one test, which leaves nothing in it; fail if it was not clean.

        A tab that another test has used opens a page in half of the processor time of a new one.
        """
        size = self.page.viewport_size
        self.page.bring_to_front()
        try:
            yield self
            self.assert_clean()
        finally:
            self.page.unroute_all(behavior="ignoreErrors")
            if self.page.url.startswith(self.url):
                self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            self.page.goto("about:blank")
            if size is not None and self.page.viewport_size != size:
                self.page.set_viewport_size(size)
            self.errors.clear()


@contextmanager
def browser_context(
    browser: Browser, *, scheme: Literal["light", "dark"] = "light", size: tuple[int, int] = (1280, 800), **options: Any
) -> Iterator[BrowserContext]:
    """Create a browser profile, with its own cookies and cache, for any number of tabs."""
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
def open_tab(context: BrowserContext, url: str) -> Iterator[Visit]:
    """Open an empty tab for the service at `url`."""
    visit = Visit(context.new_page(), url)

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            visit.errors.append(f"{message.text} ({message.location.get('url', '')})")

    visit.page.on("console", on_console)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    try:
        yield visit
    finally:
        visit.page.close()


@contextmanager
def open_tab_in_new_profile(
    browser: Browser,
    url: str,
    *,
    scheme: Literal["light", "dark"] = "light",
    size: tuple[int, int] = (1280, 800),
    **options: Any,
) -> Iterator[Visit]:
    """Open an empty tab in a new browser profile."""
    with browser_context(browser, scheme=scheme, size=size, **options) as context, open_tab(context, url) as visit:
        yield visit


@contextmanager
def signed_in_context(
    browser: Browser, url: str, token: str, *, size: tuple[int, int] = (1280, 800)
) -> Iterator[BrowserContext]:
    """Create a browser profile in which a user is signed in."""
    with browser_context(browser, size=size) as context:
        with open_tab(context, url) as visit:
            visit.sign_in(token)
            visit.assert_clean()
        yield context


@contextmanager
def open_signed_in_tab(
    browser: Browser, url: str, token: str, *, size: tuple[int, int] = (1280, 800)
) -> Iterator[Visit]:
    """Open a tab in a new browser profile, and sign in; for the tests of a module, to which it is lent one by one."""
    with signed_in_context(browser, url, token, size=size) as context, open_tab(context, url) as visit:
        yield visit
