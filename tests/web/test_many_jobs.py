"""The table with many more jobs than fit the window."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import Visit, open_tab_in_new_profile
from tests.support.live_world import served
from tests.support.many_jobs import fill
from tests.support.world import World

pytestmark = [pytest.mark.web]

JOBS = 1000
MOST_ROWS = 100
TO_THE_END = "const frame = document.querySelector('#table-frame'); frame.scrollTop = frame.scrollHeight"


@pytest.fixture(scope="module")
def large_service(world: World) -> Iterator[tuple[World, str]]:
    """A service with 1,001 jobs, of which the oldest is named `the oldest`, and its URL."""
    world.client.post(f"/v1/jobs/{world.submit(name='the oldest')}/cancel")
    world.clock.advance(1)
    fill(world, JOBS, values=False)
    with served(world) as url:
        yield world, url


@pytest.fixture(scope="module")
def tab(browser: Browser, large_service: tuple[World, str]) -> Iterator[Visit]:
    world, url = large_service
    with open_tab_in_new_profile(browser, url) as visit:
        visit.sign_in(world.token)
        yield visit


@pytest.fixture
def large_table(tab: Visit) -> Iterator[Visit]:
    """A tab with their table."""
    with tab.lent():
        tab.go("/jobs")
        yield tab
        tab.ignore_errors("/v1/sweeps/")  # the jobs name sweeps that do not exist


def test_only_visible_rows_are_in_the_document(large_table: Visit) -> None:
    page = large_table.page
    rows = page.locator("tr.job")
    expect(page.locator("#loaded")).to_contain_text("loaded")
    oldest = page.get_by_role("link", name="the oldest")
    for _ in range(40):
        page.evaluate(TO_THE_END)
        page.wait_for_timeout(100)
        assert rows.count() < MOST_ROWS
        if oldest.is_visible():
            break
    expect(oldest).to_be_visible()
    expect(page.locator("#loaded")).to_have_text("1\u202f001 jobs")
    page.evaluate("document.querySelector('#table-frame').scrollTop = 0")
    expect(page.get_by_role("link", name="the oldest")).to_have_count(0)


def test_the_first_rows_fill_the_window_before_others_are_read(large_table: Visit) -> None:
    page = large_table.page
    page.set_viewport_size({"width": 1440, "height": 1200})
    page.route("**/v1/**", lambda route: route.abort())
    large_table.go("/jobs")
    last = page.locator("tr.job").last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] >= 1200
    large_table.ignore_network_errors()


def test_the_service_sorts_all_jobs(large_table: Visit) -> None:
    page = large_table.go("/jobs?sort=-name")
    expect(page.locator("tr.job .name a").first).to_have_text("the oldest")
    expect(page.locator("#loaded")).to_contain_text("jobs loaded")


def test_an_unreachable_service_is_not_polled_forever(large_table: Visit) -> None:
    page = large_table.page
    requests: list[str] = []
    page.route("**/v1/jobs?*after=*", lambda route: (requests.append(route.request.url), route.abort()))
    large_table.go("/jobs")
    page.evaluate(TO_THE_END)
    expect(page.locator("#toast")).to_have_text("The service does not answer.")
    expect(page.get_by_role("button", name="Load more")).to_be_visible()
    page.wait_for_timeout(500)
    assert len(requests) <= 2, requests
    page.unroute("**/v1/jobs?*after=*")
    page.get_by_role("button", name="Load more").click()
    expect(page.locator("#loaded")).to_have_text("250 jobs loaded")
    large_table.ignore_network_errors()
