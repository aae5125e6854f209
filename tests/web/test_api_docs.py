"""The reference of the API in a browser."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit

pytestmark = [pytest.mark.web]


def test_api_docs_show_operations_without_foreign_requests(visit: Visit) -> None:
    requested: list[str] = []
    visit.page.on("request", lambda request: requested.append(request.url))
    page = visit.go("/docs")
    expect(page.locator("#operations-jobs-submit_job")).to_be_visible()
    page.locator("#operations-jobs-submit_job button.opblock-summary-control").click()
    expect(page.locator("#operations-jobs-submit_job .opblock-body")).to_be_visible()
    expect(page.get_by_role("button", name="Try it out")).to_have_count(0)
    assert [url for url in requested if not url.startswith((visit.url, "data:"))] == []
    visit.assert_clean()
