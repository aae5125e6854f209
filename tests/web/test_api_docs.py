"""The reference of the API in a browser."""

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit

pytestmark = [pytest.mark.web]


def test_api_docs_show_operations_and_schemas_without_foreign_requests(visit: Visit) -> None:
    requested: list[str] = []
    visit.page.on("request", lambda request: requested.append(request.url))
    page = visit.go("/docs#submit_job")
    submit = page.locator("#submit_job")
    expect(submit.get_by_role("heading", name="Parameters")).to_be_visible()
    expect(submit.locator("tr", has_text="idempotency-key")).to_contain_text("returns the first response")
    submit.locator("summary", has_text="TrainingSpec").first.click()
    expect(submit.locator("tr", has_text="precision").first).to_contain_text('"bf16"')
    submit.locator("summary", has_text="HfModel").first.click()
    expect(submit.locator("tr", has_text="path").first).to_contain_text("allowed root")
    submit.locator("summary", has_text="201").first.click()
    expect(submit.get_by_text("Id of this request in the service's log.").first).to_be_visible()
    page.evaluate("location.hash = '#main'")  # as the link that skips to the content does
    assert_accessible(page, "#submit_job")
    assert [url for url in requested if not url.startswith((visit.url, "data:"))] == []
    visit.assert_clean()


def test_operations_are_filtered_by_parts_of_their_text(visit: Visit) -> None:
    page = visit.go("/docs")
    document = page.evaluate("async () => (await fetch('/openapi.json')).json()")
    count = sum(len(item.keys() & {"get", "post", "put", "patch", "delete"}) for item in document["paths"].values())
    expect(page.locator(".operation")).to_have_count(count)
    expect(page.locator("#count")).to_have_text(f"{count} operations")
    page.get_by_label("Filter operations").fill("DELETE views")
    expect(page.locator(".operation:visible")).to_have_attribute("id", "delete_view")
    expect(page.locator("#api > section:visible h2")).to_have_text(["Views"])
    assert_accessible(page)
    page.get_by_label("Filter operations").fill("nothing like it")
    expect(page.locator("#count")).to_have_text("0 operations")
    expect(page.locator("#api > section:visible")).to_have_count(0)
