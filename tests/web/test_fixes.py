"""Fixes of a job: differences of its spec, which one click submits."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import MEASURE_SHIFTS, Visit
from tests.support.live_service import LiveService
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

FAILURE = {"rank": 0, "type": "DivergedError", "message": "the loss became NaN or infinite at step 5", "final": True}
HOT = {**SPEC, "optimizer": {"name": "sgd", "lr": 1e9, "clip_norm": None}}


@pytest.fixture
def failed(client: Client, service: LiveService) -> Any:
    """A job that failed because of its learning rate."""
    job = client.submit({**HOT, "name": "hot"})
    worker = service.start(job.id)
    worker.end("error", step=5, failure=FAILURE)
    return job.wait(timeout=90)


def shown_changes(page: Page) -> list[dict[str, str]]:
    """The differences of the first fix, as a reader sees them."""
    return page.locator("#fixes .fix").first.evaluate(
        """fix => Array.from(fix.querySelectorAll(".spec-changes > div"), (row) => ({
            field: row.querySelector("dt").textContent,
            before: row.querySelector("del").lastChild.textContent,
            after: row.querySelector("ins").lastChild.textContent,
            meaning: row.querySelector(".hint")?.textContent ?? "" }))"""
    )


def test_one_click_submits_the_shown_difference(visit: Visit, client: Client, failed: Any) -> None:
    page = visit.go(f"/jobs/{failed.id}")
    expect(page.locator("#fixes .fix")).to_have_count(2)
    (change,) = shown_changes(page)
    assert change == {
        "field": "optimizer.lr",
        "before": "1000000000",
        "after": "100000000",
        "meaning": "Peak learning rate.",
    }
    assert_accessible(page)
    page.get_by_role("button", name="Submit with optimizer.lr = 100000000").click()
    page.wait_for_url(lambda url: "/jobs/job_" in url and failed.id not in url)
    made = client.job(page.url.rpartition("/")[2])
    assert made.spec["optimizer"] == {**failed.spec["optimizer"], "lr": 1e8}
    assert {**made.spec, "optimizer": None, "name": None, "metadata": None} == {
        **failed.spec,
        "optimizer": None,
        "name": None,
        "metadata": None,
    }
    assert made.resource.metadata["forked_from"] == failed.id


@pytest.mark.parametrize("width", [390, 1440])
def test_fixes_are_part_of_the_first_view(new_tab: Visit, failed: Any, width: int) -> None:
    """The script that shows them was read after the first view, and they moved what stood below."""
    new_tab.page.add_init_script(MEASURE_SHIFTS)
    new_tab.page.set_viewport_size({"width": width, "height": 900})
    page = new_tab.go(f"/jobs/{failed.id}")
    expect(page.locator("#fixes .fix")).to_have_count(2)
    expect(page.locator("#log")).to_contain_text("No output.")
    assert page.evaluate("window.layoutShift") < 0.02


def test_a_conflict_is_shown_with_the_new_difference(visit: Visit, client: Client, failed: Any) -> None:
    page = visit.go(f"/jobs/{failed.id}")
    expect(page.locator("#fixes .fix")).to_have_count(2)
    stale = client.job(failed.id).resource.model_dump(mode="json", by_alias=True)
    fix = stale["failure_summary"]["fixes"][0]
    fix["fields"]["optimizer.lr"] = fix["changes"][0]["after"] = 7.5
    conflict = {"error": {"message": f"job {failed.id} has changed", "type": "conflict_error", "code": "job_changed"}}
    page.route("**/changes", lambda route: route.fulfill(status=409, body=json.dumps(conflict)))
    page.route(f"**/v1/jobs/{failed.id}", lambda route: answer(route, stale))
    page.get_by_role("button", name="Submit with optimizer.lr = 100000000").click()
    expect(page.locator("#toast")).to_contain_text("has changed")
    expect(page.locator("#fixes ins").first).to_contain_text("7.5")
    expect(page.get_by_role("button", name="Submit with optimizer.lr = 7.5")).to_be_enabled()
    page.unroute("**/changes")
    page.unroute(f"**/v1/jobs/{failed.id}")
    visit.ignore_errors("Failed to load resource")


def answer(route: Route, document: dict[str, Any]) -> None:
    route.fulfill(body=json.dumps(document), content_type="application/json")


def test_a_refused_change_names_its_field(visit: Visit, failed: Any) -> None:
    page = visit.go(f"/jobs/{failed.id}")
    refusal = {
        "error": {"message": "the spec is not valid", "type": "invalid_request_error", "code": "invalid_spec"},
        "problems": [{"param": "optimizer.lr", "message": "must be lower"}],
    }
    page.route("**/changes", lambda route: route.fulfill(status=422, body=json.dumps(refusal)))
    page.get_by_role("button", name="Submit with optimizer.lr = 100000000").click()
    expect(page.locator("#fixes .problem").first).to_have_text("optimizer.lr: must be lower")
    page.unroute("**/changes")
    visit.ignore_errors("Failed to load resource")


def test_long_values_are_shortened_and_can_be_opened(visit: Visit, client: Client, failed: Any) -> None:
    changed = client.job(failed.id).resource.model_dump(mode="json", by_alias=True)
    value = "/data/" + "very-long-folder/" * 12
    changed["failure_summary"]["fixes"][0]["changes"][0]["before"] = value
    page = visit.go(f"/jobs/{failed.id}")
    page.route("**/changes", lambda route: route.fulfill(status=409, body='{"error": {"code": "job_changed"}}'))
    page.route(f"**/v1/jobs/{failed.id}", lambda route: answer(route, changed))
    page.get_by_role("button", name="Submit with optimizer.lr = 100000000").click()
    long = page.locator("#fixes del details").first
    expect(long.locator("summary")).to_have_text(f"{value[:60]}…")
    expect(long.locator("span")).to_be_hidden()
    long.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(long.locator("span")).to_have_text(value)
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.unroute("**/changes")
    page.unroute(f"**/v1/jobs/{failed.id}")
    visit.ignore_errors("Failed to load resource")
