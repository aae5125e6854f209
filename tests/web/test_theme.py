"""The theme of the pages, and their accessibility in each."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible, violations
from tests.support.browser import Visit
from trainyard.client import Client

pytestmark = [pytest.mark.web]

LIGHT, DARK = "rgb(247, 248, 250)", "rgb(16, 20, 27)"
RECORD = """new MutationObserver((_, observer) => {
  if (!document.body) return;
  window.themeBeforeBody = document.documentElement.dataset.theme;
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""
"""Nothing is painted before there is a body."""
PAGES = (
    *("/jobs", "/submit", "/cluster", "/files", "/models", "/compare", "/help", "/help/programs", "/admin"),
    *("/admin/webhooks", "/admin/audit", "/jobs/none"),
)
"""The last one does not exist."""
TABS = ("overview", "charts", "media", "log", "spec", "history", "charts&drawer=log")
DRAWN = "document.querySelector('#chart-loss .frame').chart.curves[0]"


def test_chosen_theme_is_stored_and_set_before_the_first_paint(signed_out: Visit) -> None:
    page = signed_out.page
    page.add_init_script(RECORD)
    signed_out.go("/sign-in")
    assert page.evaluate("window.themeBeforeBody") == "light"
    page.get_by_label("Theme").select_option("Dark")
    expect(page.locator("body")).to_have_css("background-color", DARK)
    page.reload()
    assert page.evaluate("window.themeBeforeBody") == "dark"
    expect(page.get_by_label("Theme")).to_have_value("dark")
    page.get_by_label("Theme").select_option("System")
    expect(page.locator("body")).to_have_css("background-color", LIGHT)
    signed_out.assert_clean()


def test_system_theme_follows_the_system(signed_out: Visit) -> None:
    page = signed_out.go("/sign-in")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("body")).to_have_css("background-color", DARK)
    page.get_by_label("Theme").select_option("Light")
    expect(page.locator("body")).to_have_css("background-color", LIGHT)


def test_charts_and_other_tabs_change_with_the_theme(signed_out: Visit, token: str, running_job: Any) -> None:
    page = signed_out.sign_in(token, f"/jobs/{running_job.id}")
    page.wait_for_function(f"() => {DRAWN}?.x.length > 10", timeout=60_000)
    assert page.evaluate(f"{DRAWN}.colour") == "#2559c4"
    other = page.context.new_page()
    other.goto(signed_out.url + "/jobs")
    other.locator("#account > summary").click()
    other.get_by_label("Theme").select_option("Dark")
    page.wait_for_function(f"() => {DRAWN}.colour === '#7ba7f7'")
    expect(page.locator("body")).to_have_css("background-color", DARK)


def test_sign_in_and_its_question_are_accessible(signed_out: Visit, client: Client) -> None:
    problems = violations(signed_out.go("/sign-in"))
    page = signed_out.page
    page.evaluate("code => { location.hash = `code=${code}`; }", client.create_sign_in_code().code)
    expect(page.get_by_role("heading", name="Sign in as admin?")).to_be_visible()
    assert not problems + violations(page)


@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(visit: Visit, path: str) -> None:
    problems = violations(visit.go(path))
    visit.ignore_errors("the server responded with a status of 404")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("tab", TABS)
def test_tab_of_a_job_is_accessible(visit: Visit, saved_job: str, tab: str) -> None:
    assert_accessible(visit.go(f"/jobs/{saved_job}?tab={tab}"))


def test_running_job_and_comparison_are_accessible(visit: Visit, running_job: Any, saved_job: str) -> None:
    assert_accessible(visit.go(f"/jobs/{running_job.id}"))
    assert_accessible(visit.go(f"/compare?job={running_job.id}&job={saved_job}"))
