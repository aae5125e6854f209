"""Metrics whose names have any characters: drawn, pinned, combined, compared, completed, filtered and sorted by."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from service.metrics.summaries import back_fill
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

NAMES = ["準確率", "a,b", "`q`", "<b>λ</b>", 'a"b\\', "50%2C", " x  y ", "μ/", "μ/x", "min(x)", "system/x"]
DRAWN = "document.querySelector('#chart-selected .frame').chart.curves.map((one) => one.y[1])"


@pytest.fixture(scope="module")
def jobs(browser: Browser, world: World) -> Iterator[tuple[Visit, list[str]]]:
    """A tab, and two jobs with a metric of each name; the values of the second job are larger by 100."""
    made = []
    for more in (0, 100):
        made.append(job := world.submit(name=f"plus-{more}"))
        worker = world.start(job)
        worker.metrics([(name, step, number + more) for number, name in enumerate(NAMES) for step in (1, 2)])
        worker.end("completed")
        world.reconciler.run_once()
    after: int | None = 0
    while after is not None:
        after = back_fill(world.database, after)
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, made


@pytest.fixture
def visit(jobs: tuple[Visit, list[str]]) -> Iterator[Visit]:
    with jobs[0].lent():
        yield jobs[0]


def test_charts_are_drawn_pinned_and_combined(visit: Visit, jobs: tuple[Visit, list[str]]) -> None:
    page = visit.go(f"/jobs/{jobs[1][0]}?tab=charts")
    expect(page.locator(".chart-section h3")).to_have_text(["Metrics", "μ"])
    closed = page.locator(".chart-section:not([open]) h3")
    for _ in range(closed.count()):
        closed.first.click()
    page.get_by_role("button", name="Next charts of Metrics").click()
    expect(page.locator("[id='chart-metric-system/x'] .chart-title")).to_have_text("system/x")
    assert set(NAMES) <= set(page.locator(".chart-title").all_text_contents())
    for name in ("準確率", "a,b"):
        page.get_by_label("Find a chart").fill(name)
        figure = page.locator(f"[id='chart-metric-{name}']")
        figure.scroll_into_view_if_needed()
        figure.hover()
        figure.get_by_role("button", name="Pin").click()
    page.get_by_label("Find a chart").fill("")
    page.locator("#chart-options > summary").click()
    page.get_by_role("button", name="Combine metrics").click()
    for name in ("a,b", "50%2C", "μ/"):
        page.locator("#combination-list label").filter(has_text=re.compile(f"^{re.escape(name)}$")).locator(
            "input"
        ).check()
    page.get_by_role("button", name="Add chart").click()
    expect(page).to_have_url(re.compile("[?&]chart="))
    page.goto(page.url)
    pinned = page.locator(".chart-section").first
    expect(pinned.locator("h3")).to_contain_text("Pinned")
    expect(pinned.locator(".chart-title")).to_have_text(["a,b", "準確率"])
    page.wait_for_function("() => document.querySelector('[id^=chart-combined] .frame').chart?.curves.length === 3")
    drawn = page.evaluate(
        "() => document.querySelector('[id^=chart-combined] .frame').chart.curves.map((one) => one.y[0])"
    )
    assert sorted(drawn) == sorted(NAMES.index(name) for name in ("a,b", "50%2C", "μ/"))


def test_runs_are_compared_by_each_name(visit: Visit, jobs: tuple[Visit, list[str]]) -> None:
    page = visit.go(f"/compare?{urlencode([('job', job) for job in jobs[1]])}")
    for number, name in enumerate(NAMES):
        page.locator("#key").select_option(name)
        expect(page.locator("#chart-selected .chart-title")).to_have_text(name)
        page.wait_for_function(f"values => String({DRAWN}) === values", arg=f"{number},{number + 100}")


def test_jobs_are_filtered_by_completed_names_and_sorted(visit: Visit) -> None:
    page = visit.go("/jobs")
    box = page.get_by_role("combobox", name="Filter by a query")
    for typed, number in (("`準", 0), ("`a,", 1), ("```q", 2), ("`50%", 5), ("`min(", 9)):
        box.fill("")
        box.press_sequentially(typed)
        expect(page.get_by_role("listbox", name="Completions").get_by_role("option")).to_have_count(1)
        for key in ("ArrowDown", "Enter"):
            box.press(key)
        box.press_sequentially(f"= {number + 100}")
        box.press("Enter")
        expect(page.locator("tr.job .name > a")).to_have_text(["plus-100"])
    keys = page.evaluate("() => fetch('/v1/job-keys').then((answer) => answer.json())")["data"]
    columns = [key["key"] for key in keys if key["kind"] == "metric"]
    assert len(columns) == len(NAMES)
    for column in columns:
        page = visit.go(f"/jobs?{urlencode([('columns', 'name'), ('columns', column), ('sort', column)])}")
        expect(page.locator("tr.job .name > a")).to_have_text(["plus-0", "plus-100"])
        expect(page.locator("tr.job").last).to_contain_text("10")
