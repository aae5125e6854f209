"""Keyboard shortcuts: moving between pages and rows, and turning them off."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

NAMES = [f"run-{number}" for number in reversed(range(30))]


@pytest.fixture(scope="module")
def tab(browser: Browser, world: World) -> Iterator[Visit]:
    """A tab on a service with thirty queued jobs."""
    for name in reversed(NAMES):
        world.submit(name=name)
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as visit:
        yield visit


@pytest.fixture
def page(tab: Visit) -> Iterator[Page]:
    """The table of jobs."""
    with tab.lent():
        yield tab.go("/jobs")


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


def test_rows_are_walked_and_opened(page: Page) -> None:
    expect(page.locator("tr.job")).not_to_have_count(0)
    walked = []
    for key in ("j", "j", "j", "k"):
        page.keyboard.press(key)
        walked.append(focused(page))
    assert walked == [NAMES[0], NAMES[1], NAMES[2], NAMES[1]]
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=NAMES[1])).to_be_visible()


def test_all_rows_are_reached_and_stay_in_sight(page: Page) -> None:
    for _ in range(len(NAMES) + 2):
        page.keyboard.press("j")
    assert focused(page) == NAMES[-1]
    expect(page.get_by_role("link", name=NAMES[-1], exact=True)).to_be_in_viewport()


def test_enter_opens_a_row_without_a_link(tab: Visit, page: Page) -> None:
    tab.go("/jobs?columns=status")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=NAMES[0])).to_be_visible()


@pytest.mark.parametrize(
    ("keys", "path"),
    [("gc", "/compare"), ("gs", "/jobs?where=exists+sweep&group=sweep"), ("n", "/submit"), ("gj", "/jobs")],
)
def test_keys_lead_to_pages(tab: Visit, page: Page, keys: str, path: str) -> None:
    if path == "/jobs":
        tab.go("/cluster")
    page.keyboard.type(keys)
    page.wait_for_url(tab.url + path)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_slash_focuses_the_filter_where_keys_are_text(page: Page) -> None:
    page.keyboard.press("/")
    expect(page.get_by_label("Filter by a query")).to_be_focused()
    page.keyboard.type("gc?jn/")
    expect(page.get_by_label("Filter by a query")).to_have_value("gc?jn/")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_label("Filter by a query").fill("")
    page.locator("#account > summary").click()
    page.get_by_label("Theme").focus()
    page.keyboard.type("n")
    page.wait_for_url("**/jobs")


def test_rare_controls_are_in_a_menu_for_the_keyboard(page: Page) -> None:
    summary = page.locator("#account > summary")
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    summary.focus()
    page.keyboard.press("Enter")
    assert_accessible(page, "#account")
    summary.focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Theme")).to_be_focused()
    for name in ("Keyboard shortcuts", "Sign out"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Escape")
    expect(summary).to_be_focused()
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()


def test_dialog_lists_the_keys_and_turns_them_off(page: Page) -> None:
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog.get_by_text("New job")).to_be_visible()
    assert Axe().run(page, "#shortcuts").violations_count == 0
    page.keyboard.press("n")  # a key for the dialog, not for the page
    dialog.get_by_label("Use keyboard shortcuts").set_checked(False, force=True)
    dialog.get_by_role("button", name="Close").click()
    page.reload()
    page.keyboard.type("gc?n")
    expect(dialog).to_be_hidden()
    assert page.url.endswith("/jobs")
    page.locator("#account > summary").click()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    dialog.get_by_label("Use keyboard shortcuts").set_checked(True, force=True)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#account > summary")).to_be_focused()
    page.keyboard.press("?")
    expect(dialog).to_be_visible()
