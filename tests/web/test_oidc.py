"""Signing in and out at a real OpenID provider, which is on another site than the service."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit, browser_context, open_tab, open_tab_in_new_profile
from tests.support.live_service import RealTime
from tests.support.live_world import served
from tests.support.oidc_provider import RealProvider, free_port, running_provider
from tests.support.world import World
from trainyard.client import Client

pytestmark = [pytest.mark.web]

FONTS = "fonts.googleapis.com"
"""The pages of the provider request a font from there."""


@dataclass(frozen=True)
class Portal:
    world: World
    url: str
    provider: RealProvider


@pytest.fixture(scope="module")
def portal(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    folder, port = tmp_path_factory.mktemp("oidc"), free_port()
    shutil.copy(migrated_sqlite, folder / "web.sqlite")
    url = f"http://127.0.0.1:{port}"
    with running_provider(url) as provider:
        settings = {**provider.settings, "oidc_email_domains": ("example.org",)}
        world = World(f"sqlite:///{folder / 'web.sqlite'}", folder / "state", RealTime(), **settings)
        with served(world, port):
            yield Portal(world, url, provider)
        world.database.dispose()


@pytest.fixture
def tab(browser: Browser, portal: Portal) -> Iterator[Visit]:
    with open_tab_in_new_profile(browser, portal.url) as visit:
        yield visit
        visit.ignore_errors(FONTS)
        visit.ignore_errors("favicon.ico")
        visit.assert_clean()


def sign_in(page: Page, user: str) -> None:
    """Sign in with the provider's forms, from the sign-in page of the service."""
    page.get_by_role("link", name="Sign in with Example").click()
    page.get_by_placeholder("Enter any login").fill(user)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_provider_signs_in_and_the_requested_page_opens(tab: Visit, portal: Portal) -> None:
    page = tab.go("/jobs?status=failed")
    sign_in(page, "ada")
    page.wait_for_url(f"{portal.url}/jobs?status=failed")
    expect(page.locator(".user")).to_have_text("ada admin")


def test_role_follows_the_groups(tab: Visit, portal: Portal) -> None:
    page = tab.go("/jobs")
    sign_in(page, "bob")
    page.wait_for_url(f"{portal.url}/jobs")
    expect(page.locator(".user")).to_have_text("bob user")
    expect(page.get_by_role("link", name="Admin")).to_have_count(0)


def test_sign_out_ends_the_session_at_the_provider(tab: Visit, portal: Portal) -> None:
    page = tab.go("/jobs")
    sign_in(page, "ada")
    page.locator("#account > summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(re.compile(re.escape(portal.provider.issuer)))
    page.get_by_role("button", name="Yes, sign me out").click()
    page.wait_for_url(f"{portal.url}/sign-in*")
    page.get_by_role("link", name="Sign in with Example").click()
    expect(page.get_by_placeholder("Enter any login")).to_be_visible()


def test_user_of_another_domain_is_refused(tab: Visit, portal: Portal) -> None:
    page = tab.go("/jobs")
    sign_in(page, "eve")
    expect(page.get_by_role("alert").filter(has_text="of none of the domains that can use")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_visible()
    assert_accessible(page)
    tab.ignore_errors("403 (Forbidden)")


def test_cancelled_sign_in_is_explained(tab: Visit, portal: Portal) -> None:
    page = tab.go("/cluster")
    page.get_by_role("link", name="Sign in with Example").click()
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_role("alert").filter(has_text="The sign-in was cancelled")).to_be_visible()
    tab.ignore_errors("400 (Bad Request)")
    sign_in(page, "bob")
    page.wait_for_url(f"{portal.url}/cluster")
    expect(page.locator(".user")).to_be_visible()


def test_two_tabs_sign_in_at_once(browser: Browser, portal: Portal) -> None:
    with (
        browser_context(browser) as context,
        open_tab(context, portal.url) as one,
        open_tab(context, portal.url) as two,
    ):
        pages = [one.go("/jobs"), two.go("/cluster")]
        for page in pages:
            page.get_by_role("link", name="Sign in with Example").click()
            expect(page.get_by_placeholder("Enter any login")).to_be_visible()
        for page in pages:
            page.get_by_placeholder("Enter any login").fill("bob")
            page.get_by_placeholder("and password").fill("any")
            page.get_by_role("button", name="Sign-in").click()
        pages[0].get_by_role("button", name="Continue").click()  # the provider remembers the consent of the first tab
        pages[0].wait_for_url(f"{portal.url}/jobs")
        pages[1].get_by_role("button", name="Continue").click()
        pages[1].wait_for_url(f"{portal.url}/cluster")
        for page in pages:
            expect(page.locator(".user")).to_have_text("bob user")


def test_page_shows_a_code_for_a_terminal(tab: Visit, portal: Portal) -> None:
    page = tab.go("/sign-in/oidc/code")
    page.get_by_placeholder("Enter any login").fill("bob")
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("heading", name="Sign in a terminal")).to_be_visible()
    assert_accessible(page)
    with Client(portal.url, "") as client:
        made = client.exchange_sign_in_code(page.locator("#code").inner_text())
    with Client(portal.url, made.token) as client:
        assert client.whoami().name == "bob"


def test_script_reads_none_of_the_cookies(tab: Visit, portal: Portal) -> None:
    page = tab.go("/jobs")
    sign_in(page, "bob")
    expect(page.locator(".user")).to_be_visible()
    cookies = {one["name"]: one for one in page.context.cookies(portal.url) if one["name"].startswith("trainyard")}
    assert {name: (one["httpOnly"], one["sameSite"]) for name, one in cookies.items()} == {
        "trainyard": (True, "Strict"),
        "trainyard-sign-in": (True, "Lax"),
    }
    assert page.evaluate("document.cookie") == ""
