"""The theme of the pages, and their accessibility in each."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import violations
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
PAGES = ("/jobs", "/submit", "/cluster", "/files", "/models", "/compare", "/help", "/help/programs", "/jobs/none")
"""Pages of everybody; the last one does not exist."""
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
    other.get_by_label("Theme").select_option("Dark")
    page.wait_for_function(f"() => {DRAWN}.colour === '#7ba7f7'")
    expect(page.locator("body")).to_have_css("background-color", DARK)


def test_sign_in_and_its_question_are_accessible(signed_out: Visit, client: Client) -> None:
    problems = violations(signed_out.go("/sign-in"))
    page = signed_out.page
    page.evaluate("code => { location.hash = `code=${code}`; }", client.create_sign_in_code().code)
    expect(page.get_by_role("heading", name="Sign in as admin?")).to_be_visible()
    assert not problems + violations(page)


def test_pages_are_accessible(visit: Visit, running_job: Any, saved_job: str) -> None:
    tabs = ("charts", "media", "log", "spec", "history", "charts&drawer=log")
    job_pages = [f"/jobs/{running_job.id}", *(f"/jobs/{saved_job}?tab={tab}" for tab in ("overview", *tabs))]
    compared = f"/compare?job={running_job.id}&job={saved_job}"
    admin_pages = ["/admin", "/admin/webhooks", "/admin/audit"]
    problems = []
    for path in [*PAGES, *admin_pages, *job_pages, compared]:
        problems += violations(visit.go(path))
    visit.ignore_errors("the server responded with a status of 404")
    assert not problems, "\n".join(problems)
