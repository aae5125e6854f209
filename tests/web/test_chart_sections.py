"""The sections of a job with many metrics: which are open, and what a search shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import Visit, open_tab_in_new_profile
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

GROUPS = [f"layer{number:02}" for number in range(20)]


@pytest.fixture(scope="module")
def site(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str, str]]:
    """A service, its URL, and the id of a job with two metrics in each of twenty groups."""
    folder = tmp_path_factory.mktemp("sections")
    (folder / "sections.sqlite").write_bytes(migrated_sqlite.read_bytes())
    world = World(f"sqlite:///{folder / 'sections.sqlite'}", folder / "state")
    job = world.submit(name="deep")
    worker = world.start(job)
    worker.metrics([(f"{group}/{name}", step, 1.0) for group in GROUPS for name in ("norm", "mean") for step in (1, 2)])
    worker.end("completed")
    world.reconciler.run_once()
    with served(world) as url:
        yield world, url, job
    world.database.dispose()


@pytest.fixture
def visit(browser: Browser, site: tuple[World, str, str]) -> Iterator[Visit]:
    """A tab with the page of the job."""
    world, url, job = site
    with open_tab_in_new_profile(browser, url) as visit:
        visit.sign_in(world.token, f"/jobs/{job}")
        yield visit
        visit.assert_clean()


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
