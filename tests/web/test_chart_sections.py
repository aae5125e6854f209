"""The charts of a job with many metrics: their sections, pages, and search, and the height of each tab."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World
from tests.web.test_job import MEASURE_SHIFTS

pytestmark = [pytest.mark.web]

LAYERS = [f"layer{number:02}" for number in range(45)]
NAMES = [*(f"{layer}/{name}" for layer in LAYERS for name in ("grad_norm", "mean")), "val/acc", "other/x", "time"]
TABS = ("overview", "charts", "media", "log", "spec", "history")


@pytest.fixture(scope="module")
def page_of_job(browser: Browser, world: World) -> Iterator[tuple[Visit, str]]:
    """A tab, and the address of a job with a hundred metrics, of which most are of numbered layers."""
    job = world.submit(name="deep")
    worker = world.start(job)
    standard = ["train/loss", "train/lr", "train/grad_norm", "perf/examples_per_second", "memory/host_rss_bytes"]
    for step in range(1, 9):
        worker.metrics([(name, step, 1.0 / step) for name in (*standard, *NAMES)])
    worker.log("0", 0, b"".join(b"line %d\n" % number for number in range(400)))
    worker.end("completed")
    world.reconciler.run_once()
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, f"/jobs/{job}"


@pytest.fixture
def visit(page_of_job: tuple[Visit, str]) -> Iterator[Visit]:
    """A tab with the charts of the job."""
    tab, address = page_of_job
    with tab.lent():
        tab.go(f"{address}?tab=charts")
        yield tab


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), (390, 844)])
def test_no_tab_of_100_metrics_is_longer_than_two_screens(
    page_of_job: tuple[Visit, str], size: tuple[int, int]
) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.page.set_viewport_size({"width": size[0], "height": size[1]})
        for name in TABS:
            page = tab.go(f"{address}?tab={name}")
            page.wait_for_load_state("networkidle")
            height, width, focusable = page.evaluate(
                """() => [document.documentElement.scrollHeight, document.documentElement.scrollWidth,
                  [...document.querySelectorAll("a, button, input, select, summary, [tabindex='0']")]
                    .filter((one) => one.tabIndex >= 0 && one.checkVisibility()).length]"""
            )
            assert height <= 2 * size[1], name
            assert width <= size[0], name
            assert focusable < 120, name


@pytest.mark.parametrize("name", ["overview", "charts"])
def test_the_first_curve_is_on_the_first_screen_of_a_phone(page_of_job: tuple[Visit, str], name: str) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.page.set_viewport_size({"width": 390, "height": 844})
        tab.page.add_init_script(MEASURE_SHIFTS)
        page = tab.go(f"{address}?tab={name}")
        page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.plot")
        page.wait_for_load_state("networkidle")
        box = page.locator("#chart-loss").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 844
        assert page.evaluate("window.layoutShift") < 0.02


def test_sections_of_numbered_names_and_of_one_chart_are_merged(visit: Visit) -> None:
    page = visit.page
    sections = page.locator(".chart-section h3")
    expect(sections).to_have_text(["Overview", "layer*", "Metrics"])
    expect(page.locator(".chart-section summary small")).to_have_text(["5", "90", "3"])


def test_a_section_shows_its_charts_in_pages(visit: Visit) -> None:
    page = visit.page
    section = page.locator(".chart-section", has=page.get_by_role("heading", name="layer*"))
    shown = section.locator(".chart:visible .chart-title")
    if section.get_attribute("open") is None:
        page.get_by_role("heading", name="layer*").click()
    expect(shown).to_have_text(sorted(NAMES)[:6])
    expect(section.locator(".pager")).to_contain_text("1 to 6 of 90")
    page.get_by_role("button", name="Next charts of layer*").click()
    expect(shown).to_have_text(sorted(NAMES)[6:12])
    page.get_by_role("button", name="Previous charts of layer*").click()
    page.get_by_role("button", name="Previous charts of layer*").click()
    expect(shown).to_have_text(sorted(NAMES)[:6])


def test_a_search_opens_the_sections_of_its_charts(visit: Visit) -> None:
    page = visit.page
    search = page.get_by_label("Find a chart")
    chart = page.locator("[id='chart-metric-layer44/mean']")
    expect(page.locator(".chart-section")).to_have_count(3)
    opened = page.locator(".chart-section[open]").count()
    expect(chart).to_be_hidden()
    search.fill("layer44/mean")
    expect(chart).to_be_visible()
    search.fill("nothing")
    expect(page.get_by_text("No chart matches.")).to_be_visible()
    search.fill("")
    expect(page.locator(".chart-section[open]")).to_have_count(opened)
    expect(page.get_by_text("No chart matches.")).to_be_hidden()
    page.wait_for_function("() => !location.search.includes('find=')")
    assert "section=" not in page.url


def test_pinned_charts_are_first_on_the_overview(visit: Visit) -> None:
    page = visit.page
    page.get_by_label("Find a chart").fill("layer30/mean")
    chart = page.locator("[id='chart-metric-layer30/mean']")
    chart.hover()
    chart.get_by_role("button", name="Pin").click()
    page.get_by_role("tab", name="Overview").click()
    expect(page.locator(".chart:visible .chart-title")).to_have_text(["layer30/mean", "Loss", "Learning rate"])
    expect(page.get_by_label("Find a chart")).to_be_hidden()


@pytest.mark.parametrize(
    ("keys", "sections"),
    [
        (["a/x", "a/y", "b/x"], ["a", "a", "Metrics"]),
        (["h0/x", "h1/x", "h2/x"], ["h*", "h*", "h*"]),
        (["h0/x", "h0/y", "z"], ["h0", "h0", "Metrics"]),
        (["x1/a", "10/a"], ["Metrics", "Metrics"]),
    ],
)
def test_sections_of_metrics(module: Callable[[str], Callable[..., Any]], keys: list[str], sections: list[str]) -> None:
    charts = module("chart_list.js")("chartsOf", {"task": "script"}, keys)
    assert {chart["title"]: chart["section"] for chart in charts} == dict(zip(keys, sections, strict=True))
