"""The theme of the pages, and their accessibility in each."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.support.browser import Visit, open_tab_in_new_profile
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.web]

LIGHT, DARK = "rgb(247, 248, 250)", "rgb(16, 20, 27)"
RECORD = """new MutationObserver((_, observer) => {
  if (!document.body) return;
  window.themeBeforeBody = document.documentElement.dataset.theme;
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""
"""Nothing is painted before there is a body."""
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(
    browser: Browser, service: ServiceProcess, token: str, running_job: Any, theme: str
) -> None:
    with open_tab_in_new_profile(browser, service.url) as visit:
        page = visit.go("/sign-in")
        page.get_by_label("Theme").select_option(theme)
        reports = {"/sign-in": Axe().run(page, options=RULES)}
        visit.sign_in(token)
        for path in ("/jobs", f"/jobs/{running_job.id}", "/submit", "/cluster", "/files", "/models", "/compare"):
            visit.go(path)
            reports[path] = Axe().run(page, options=RULES)
    violations = {path: report.generate_report() for path, report in reports.items() if report.violations_count}
    assert not violations, "\n".join(f"{path}: {text}" for path, text in violations.items())
