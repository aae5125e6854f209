"""The members of a sweep, ranked by a metric and in a direction that the reader chooses, and linked with the charts."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from service.web.assets import Assets
from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import SPEC, World

pytestmark = [pytest.mark.web]

RATES = [0.1, 0.2, 0.3]
VALUES = {"eval/loss": [0.5, 0.3, 0.4], "eval/accuracy": [0.7, 0.8, 0.9]}
"""The last values of each member."""


@pytest.fixture(scope="module")
def page_of_sweep(browser: Browser, world: World) -> Iterator[tuple[Visit, str, list[str]]]:
    """A tab, the address of a sweep whose members have succeeded, and the jobs."""
    body = {"name": "rates", "spec": {**SPEC, "name": "rates"}, "grid": {"optimizer.lr": RATES}, "max_parallel": 1}
    sweep = world.client.post("/v1/sweeps", json=body).json()
    jobs = [member["job_id"] for member in sweep["members"]]
    for number, job in enumerate(jobs):
        worker = world.start(job)
        worker.metrics([(key, step, values[number] + 1 - step) for key, values in VALUES.items() for step in (0, 1)])
        worker.end("completed")
        world.reconciler.run_once()
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, f"/compare?sweep={sweep['id']}", jobs


@pytest.fixture
def visit(page_of_sweep: tuple[Visit, str, list[str]]) -> Iterator[Visit]:
    tab, address, _ = page_of_sweep
    with tab.lent():
        tab.go(address)
        yield tab


@pytest.mark.parametrize(
    ("metric", "mode", "order"),
    [
        ("eval/loss", "min", [1, 2, 0]),
        ("eval/loss", "max", [0, 2, 1]),
        ("eval/accuracy", "max", [2, 1, 0]),
        ("eval/accuracy", "min", [0, 1, 2]),
    ],
)
def test_the_reader_chooses_metric_and_direction(
    visit: Visit, page_of_sweep: tuple[Visit, str, list[str]], metric: str, mode: str, order: list[int]
) -> None:
    page, jobs = visit.page, page_of_sweep[2]
    page.locator("#rank-by").select_option(metric)
    page.get_by_label("Direction").select_option(mode)
    for _ in range(2):
        expect(page.locator("#ranking tbody a")).to_have_text([f"rates #{number}" for number in order])
        expect(page.locator("#ranking tbody td:nth-child(3)")).to_have_text([str(VALUES[metric][n]) for n in order])
        expect(page.locator("#ranking tr.best a")).to_have_text(f"rates #{order[0]}")
        best = page.get_by_role("link", name="Train the best")
        expect(best).to_have_attribute("href", re.compile(f"from={jobs[order[0]]}&"))
        page.reload()


def test_a_member_is_marked_in_all_views(visit: Visit, page_of_sweep: tuple[Visit, str, list[str]]) -> None:
    page, jobs = visit.page, page_of_sweep[2]
    page.wait_for_function("() => document.querySelector('#chart-selected .frame').chart.plot")
    page.wait_for_load_state("networkidle")
    expect(page.locator("#scatter circle")).to_have_count(len(jobs))
    expect(page.locator("#runs tbody tr")).to_have_count(len(jobs))
    marked = [page.locator(f"{one}.highlighted") for one in ("#ranking tr", "#scatter circle", "#runs tr")]
    marked.append(page.locator("#parallel path.highlighted"))
    for source in (
        page.locator(f"#ranking tr[data-run='{jobs[1]}']"),
        page.locator(f"#scatter circle[data-run='{jobs[1]}']"),
        page.locator(f"#runs tr[data-id='{jobs[1]}']"),
    ):
        source.hover()
        for one in marked:
            expect(one).to_have_count(1)
        page.mouse.move(2, 2)
        for one in marked:
            expect(one).to_have_count(0)
    assert_accessible(page, "main")


def test_members_without_the_metric_have_no_rank(script_tab: Page) -> None:
    members = [
        {"number": number, "rank": None, "value": None, "metrics": {} if value is None else {"x": value}}
        for number, value in enumerate([1.0, None, "NaN", 0.5, 1.0])
    ]
    ranks = script_tab.evaluate(
        """async ([url, members]) => {
          const { ranksOf } = await import(url);
          return [...ranksOf({ metric: "y", mode: "min", members }, "x", "max").values()].map(({ rank }) => rank);
        }""",
        [Assets().url("sweep_ranking.js"), members],
    )
    assert ranks == [1, None, None, 3, 2]
