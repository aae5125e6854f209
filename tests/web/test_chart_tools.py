"""The tools above charts fit into one row, and each of twelve runs is drawn in a style of its own on all pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from service.web.assets import Assets
from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.web.specs import SPEC
from trainyard.client import Client
from trainyard.contract.wire.sweeps import SweepDetail

pytestmark = [pytest.mark.web]

RUNS = 12
WIDTHS = (1440, 1024)
SPREAD = """() => {
  const { children } = document.querySelector(":is(#curves, #charts-panel) .toolbar");
  const shown = [...children].filter((one) => one.offsetHeight > 1);
  const boxes = shown.map((one) => one.getBoundingClientRect());
  const middles = boxes.map(({ top, height }) => top + height / 2);
  return Math.max(...middles) - Math.min(...middles);
}"""
"""How many pixels the middle of the lowest tool is below that of the highest one."""
SWATCHES = "() => [...document.querySelectorAll('#runs tbody .swatch')].map((one) => one.style.background)"
EDGES = """() => [...document.querySelectorAll("tr.job:has(:checked) td.select")].map((one) =>
  one.style.getPropertyValue("--swatch"))"""


@pytest.fixture(scope="module")
def sweep(client: Client) -> Iterator[SweepDetail]:
    """A sweep of twelve jobs that wait."""
    detail = client.submit_sweep(SPEC, grid={"seed": list(range(RUNS))}, name="twelve seeds", max_parallel=RUNS)
    yield detail
    for member in detail.members:
        client.cancel(member.job_id)


def runs_of(sweep: SweepDetail) -> str:
    return "&".join(f"job={member.job_id}" for member in sweep.members)


def zoom(page: Page) -> None:
    """Show the button that ends a zoom, the last tool."""
    page.evaluate("document.getElementById('reset-zoom').hidden = false")


@pytest.mark.parametrize("width", WIDTHS)
def test_tools_take_one_row(visit: Visit, sweep: SweepDetail, saved_job: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    for path in (f"/compare?{runs_of(sweep)}", f"/compare?sweep={sweep.id}", f"/jobs/{saved_job}?tab=charts"):
        page = visit.go(path)
        expect(page.locator("#axis option").first).to_be_attached()
        zoom(page)
        assert page.evaluate(SPREAD) < 8, path


def test_tools_and_their_menu_fit_on_a_phone(visit: Visit, sweep: SweepDetail, saved_job: str) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    for path in (f"/compare?{runs_of(sweep)}", f"/jobs/{saved_job}?tab=charts"):
        page = visit.go(path)
        zoom(page)
        page.locator("#chart-options > summary").click()
        box = page.locator("#chart-options > div").bounding_box()
        assert box is not None
        assert box["x"] >= 0, path
        assert box["x"] + box["width"] <= 390, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert_accessible(page)


def test_twelve_runs_have_styles_of_their_own_on_each_page(visit: Visit, sweep: SweepDetail) -> None:
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    compared = visit.go(f"/compare?{runs_of(sweep)}")
    expect(compared.locator("#runs tbody tr")).to_have_count(RUNS)
    styles = compared.evaluate(SWATCHES)
    assert len(set(styles)) == RUNS
    assert sum("gradient" in style for style in styles) == RUNS / 2, "the second half is dashed"
    members = visit.go(f"/compare?sweep={sweep.id}")
    expect(members.locator("#runs tbody tr")).to_have_count(RUNS)
    assert members.evaluate(SWATCHES) == styles
    table = visit.go(f"/jobs?search=&{runs_of(sweep)}")
    expect(table.locator("tr.job:has(:checked)")).to_have_count(RUNS)
    table.wait_for_function(f"() => !({EDGES})().includes('transparent')")
    edges = table.evaluate(EDGES)
    assert {edge.replace("to bottom", "to right") for edge in edges} == set(styles)


def test_curves_have_36_styles(script_tab: Page) -> None:
    styles = script_tab.evaluate(
        """async (url) => {
          const { curveStyle } = await import(url);
          return Array.from({ length: 37 }, (_, n) => JSON.stringify(curveStyle(n)));
        }""",
        Assets().url("colours.js"),
    )
    assert len(set(styles)) == 36
    assert styles[36] == styles[0]


@pytest.mark.parametrize("width", [*WIDTHS, 1280, 1110])
def test_tools_next_to_the_table_take_one_row(visit: Visit, saved_job: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    page = visit.go(f"/jobs?job={saved_job}")
    expect(page.locator("#charts-panel .toolbar")).to_be_visible()
    assert page.evaluate(SPREAD) < 8
