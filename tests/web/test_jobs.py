"""The table of jobs, with jobs that report."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from tests.web.specs import ENDLESS_FOUR_RANK_SPEC, SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]


def row(page: Page, name: str) -> Any:
    return page.locator("tr.job").filter(has=page.get_by_role("link", name=name, exact=True))


RECORD_STATUSES = """name => {
  window.statuses = [];
  const record = () => {
    const named = (one) => one.querySelector(".name a")?.textContent === name;
    const status = [...document.querySelectorAll("tr.job")].find(named)?.querySelector(".chip").textContent;
    if (status && status !== window.statuses.at(-1)) window.statuses.push(status);
  };
  new MutationObserver(record).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Records every status that the table has shown for a job; polling could miss one."""


def test_job_appears_and_updates_without_a_reload(visit: Visit, client: Client, service: LiveService) -> None:
    page = visit.go("/jobs")
    page.evaluate("window.untouched = true")
    job = client.submit({**SPEC, "name": "updated-live"})
    line = row(page, "updated-live")
    expect(line).to_be_visible()
    page.evaluate(RECORD_STATUSES, "updated-live")
    worker = service.start(job.id)
    worker.report(0, 200)
    expect(line.locator(".steps")).to_have_text("200 / 400")
    worker.report(200, 400)
    worker.succeed()
    expect(line.locator(".chip")).to_have_text("succeeded")
    assert page.evaluate("window.statuses.at(-2)") == "running"
    expect(line.locator(".steps")).to_have_text("400 / 400")
    expect(line.locator(".sparkline path")).to_have_attribute("d", re.compile(r"^M.+L.+L"))
    assert client.job(job.id).status == "succeeded"
    assert page.evaluate("window.untouched")


def test_filters_are_stored_in_the_address(visit: Visit, client: Client) -> None:
    paused = client.submit({**SPEC, "name": "one-paused"})
    client.pause(paused.id)
    wait_for_status(client, paused.id, "paused")
    page = visit.go("/jobs")
    page.get_by_label("Search names").fill("ONE-pau")
    page.get_by_text("Paused", exact=True).click()
    expect(page.locator("tr.job")).to_have_count(1)
    expect(row(page, "one-paused")).to_be_visible()
    expect(page).to_have_url(visit.url + "/jobs?status=paused&search=ONE-pau")
    page.reload()
    expect(page.locator("tr.job")).to_have_count(1)
    expect(page.get_by_label("Search names")).to_have_value("ONE-pau")
    page.get_by_label("Search names").fill("no such name")
    expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()
    visit.go("/jobs").get_by_label("Search names").fill("no such name")
    expect(page.get_by_role("heading", name="No matching jobs")).to_be_visible()
    client.cancel(paused.id)


def test_html_in_a_name_is_shown_as_text(visit: Visit, client: Client) -> None:
    name = "<img src=x onerror=alert(1)>"
    visit.go("/jobs")
    client.cancel(client.submit({**SPEC, "name": name}).id)
    expect(row(visit.page, name)).to_be_visible()
    visit.page.reload()
    expect(row(visit.page, name)).to_be_visible()
    assert visit.page.locator("main img").count() == 0


def test_selected_jobs_are_cancelled_together(visit: Visit, client: Client) -> None:
    names = [f"together-{n}" for n in (1, 2)]
    ids = [client.submit({**ENDLESS_FOUR_RANK_SPEC, "name": name}).id for name in names]
    page = visit.go("/jobs")
    for name in names:
        row(page, name).get_by_role("checkbox").check()
    expect(page.get_by_role("link", name="Compare").last).to_have_attribute(
        "href", f"/compare?job={ids[0]}&job={ids[1]}"
    )
    page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel jobs").click()
    for name in names:
        expect(row(page, name).locator(".chip")).to_have_text("cancelled", timeout=60_000)


def test_sorting_sets_aria_sort_and_the_address(visit: Visit, client: Client) -> None:
    for name in ("aa-first", "zz-last"):
        client.cancel(client.submit({**SPEC, "name": name}).id)
    page = visit.go("/jobs")
    expect(row(page, "zz-last")).to_be_visible()
    head = page.locator("th[data-sort=name]")
    head.get_by_role("button", name="Name", exact=True).click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.locator("tr.job .name a").first).to_have_text("<img src=x onerror=alert(1)>")
    head.get_by_role("button", name="Name", exact=True).click()
    expect(page.locator("tr.job .name a").first).to_have_text("zz-last")
    expect(page).to_have_url(visit.url + "/jobs?sort=-name")


def test_processes_on_cpus_are_not_called_gpus(visit: Visit, saved_job: str) -> None:
    page = visit.go("/jobs?columns=name&columns=gpus")
    expect(page.locator("#jobs thead")).to_contain_text("Processes")
    expect(page.locator("#jobs thead")).not_to_contain_text("GPU")
    visit.go("/submit")
    expect(page.get_by_text("Process hours")).to_be_attached()
    expect(page.get_by_text("GPU hours")).not_to_be_attached()
