"""The sections of a job with many metrics: which are open, and what a search shows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

GROUPS = [f"layer{number:02}" for number in range(20)]


@pytest.fixture(scope="module")
def page_of_job(browser: Browser, world: World) -> Iterator[tuple[Visit, str]]:
    """A tab, and the address of a job with two metrics in each of twenty groups."""
    job = world.submit(name="deep")
    worker = world.start(job)
    worker.metrics([(f"{group}/{name}", step, 1.0) for group in GROUPS for name in ("norm", "mean") for step in (1, 2)])
    worker.end("completed")
    world.reconciler.run_once()
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, f"/jobs/{job}"


@pytest.fixture
def visit(page_of_job: tuple[Visit, str]) -> Iterator[Visit]:
    """A tab with the page of the job."""
    tab, address = page_of_job
    with tab.lent():
        tab.go(address)
        yield tab


def test_the_log_is_not_below_the_charts_of_all_groups(visit: Visit) -> None:
    page = visit.page
    expect(page.locator(".chart-section")).to_have_count(1 + len(GROUPS))
    assert page.locator(".chart-section[open] h3").all_text_contents() == ["Overview", *GROUPS[:3]]
    log = page.locator("#log").bounding_box()
    assert log is not None
    assert log["y"] < 4000
    page.get_by_role("heading", name="layer19").click()
    expect(page.locator("[id='chart-metric-layer19/norm']")).to_be_visible()


def test_a_search_opens_the_groups_of_its_charts(visit: Visit) -> None:
    page = visit.page
    search = page.get_by_label("Find a chart")
    chart = page.locator("[id='chart-metric-layer19/norm']")
    expect(page.locator(".chart-section")).to_have_count(1 + len(GROUPS))
    expect(chart).to_be_hidden()
    search.fill("layer19/norm")
    expect(chart).to_be_visible()
    search.fill("nothing")
    expect(page.get_by_text("No chart matches.")).to_be_visible()
    search.fill("")
    expect(page.locator(".chart-section[open]")).to_have_count(4)
    expect(page.get_by_text("No chart matches.")).to_be_hidden()
    page.wait_for_function("() => !location.search.includes('find=')")
    assert "section=" not in page.url
