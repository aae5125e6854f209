"""The table when there are far more jobs than fit a screen."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from bench.list_jobs import fill
from tests.support.browser import Visit, visiting
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

JOBS = 1000
MOST_ROWS = 100


@pytest.fixture
def many(browser: Browser, migrated_sqlite: Path, tmp_path: Path) -> Iterator[Visit]:
    """A window on a thousand jobs, the oldest of which has a name of its own."""
    path = tmp_path / "many.sqlite"
    path.write_bytes(migrated_sqlite.read_bytes())
    world = World(f"sqlite:///{path}", tmp_path / "state")
    world.client.post(f"/v1/jobs/{world.submit(name='the oldest')}/cancel")
    world.clock.advance(1)
    fill(world, JOBS)
    with served(world) as url, visiting(browser, url) as visit:
        visit.sign_in(world.token)
        yield visit
        visit.require_clean()
    world.database.dispose()


def test_rows_out_of_sight_are_not_in_the_document(many: Visit) -> None:
    page = many.page
    rows = page.locator("tr.job")
    expect(page.locator("#loaded")).to_contain_text("loaded")
    oldest = page.get_by_role("link", name="the oldest")
    for _ in range(40):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(100)
        assert rows.count() < MOST_ROWS
        if oldest.is_visible():
            break
    expect(oldest).to_be_visible()
    expect(page.locator("#loaded")).to_have_text("1\u202f001 jobs")
    page.evaluate("scrollTo(0, 0)")
    expect(page.get_by_role("link", name="the oldest")).to_have_count(0)


def test_sorting_by_name_sorts_all_of_them(many: Visit) -> None:
    page = many.go("/jobs?sort=name:desc")
    expect(page.locator("tr.job .name a").first).to_have_text("the oldest")
    expect(page.locator("#loaded")).to_have_text("1\u202f001 jobs")
