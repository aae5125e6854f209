"""The documentation in a browser."""

import pytest
from playwright.sync_api import expect

from service.web.help_texts import GROUPS
from tests.support.browser import Visit

pytestmark = [pytest.mark.web]


def test_search_leads_to_a_section(visit: Visit) -> None:
    page = visit.go("/jobs")
    page.get_by_role("link", name="Help").click()
    page.get_by_label("Search the documentation").fill("resume-flag <b>")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("heading", name="No section with “resume-flag <b>”")).to_be_visible()
    page.get_by_label("Search the documentation").fill("resume-flag")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Resuming").click()
    expect(page).to_have_url(f"{visit.url}/help/programs#resuming")
    expect(page.get_by_role("heading", name="Resuming")).to_be_in_viewport()
    page.get_by_role("navigation", name="Sections").get_by_role("link", name="TensorBoard").click()
    expect(page.get_by_role("heading", name="TensorBoard")).to_be_in_viewport()
    visit.assert_clean()


def test_pages_are_as_wide_as_a_phone(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 800})
    for name in (name for _, names in GROUPS for name in names):
        page = visit.go(f"/help/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") == 360, name
    visit.assert_clean()
