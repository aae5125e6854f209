"""The charts of a page: sections, search, pins, tools, exports, and what is stored in the address."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Download, Page, Route, expect

from service.web.assets import Assets
from tests.support.accessibility import assert_accessible
from tests.support.browser import MEASURE_SHIFTS, Visit

pytestmark = [pytest.mark.web]

LOSS = "document.querySelector('#chart-loss .frame').chart"
NAMES = ["<b>bold</b>", '<img src="https://example.org/x">', "a & b &lt;c&gt;", "<script>alert(1)</script>", "x" * 300]

DRAW = """async ([url, names]) => {
  const { Chart } = await import(url);
  const frame = document.createElement("div");
  frame.style = "width:900px;height:400px;position:relative";
  document.querySelector("#charts").before(frame);
  const chart = new Chart(frame, { onZoom: () => {}, onHover: () => {} });
  const curves = names.map((name, n) => ({ name, x: [1, 2, 3], y: [n, NaN, n + 2], colour: "red", dots: n === 0 }));
  chart.show(curves, { axis: "step", log: false, clip: false, range: null, marks: [{ kind: "resumed", x: 2 }] });
  frame.focus();
  frame.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
  const texts = [...frame.querySelectorAll(".chart-values span")].map((one) => one.textContent);
  return { texts, links: frame.querySelectorAll("a, img, script, b img").length };
}"""


POINTED = """async (url) => {
  const { Chart } = await import(url);
  const frame = document.createElement("div");
  frame.style = "width:900px;height:400px;position:relative";
  document.querySelector("main").prepend(frame);
  const chart = new Chart(frame, { onZoom: () => {}, onHover: () => {} });
  const steps = [...Array(41).keys()];
  chart.show([
    { name: "loss", x: steps, y: steps, colour: "red" }, { name: "eval", x: [0, 20, 40], y: [1, 2, 3], colour: "blue" },
  ], { axis: "step", log: false, clip: false, range: [15, 25], marks: [] });
  await new Promise(requestAnimationFrame);
  const over = frame.querySelector(".u-over");
  const at = (step) => {
    const { left, top } = over.getBoundingClientRect();
    const place = { clientX: left + chart.plot.valToPos(step, "x"), clientY: top + 50, bubbles: true };
    over.dispatchEvent(new MouseEvent("mousemove", place));
    return [...frame.querySelectorAll(".chart-values :is(strong, span, small, b)")].map((one) => one.textContent);
  };
  over.dispatchEvent(new MouseEvent("mouseenter"));
  const texts = { "near 18.4": at(18.4), "near 19.8": at(19.8) };
  return { ...texts, line: chart.plot.posToVal(chart.plot.cursor.left, "x") };
}"""


FOLLOWED = """async (url) => {
  const { Chart } = await import(url);
  const frame = document.createElement("div");
  frame.style = "width:600px;height:300px;position:relative";
  document.querySelector("main").prepend(frame);
  const chart = new Chart(frame, { onZoom: () => {}, onHover: () => {} });
  const steps = [...Array(41).keys()];
  const view = { axis: "step", log: false, clip: false, range: null, marks: [] };
  chart.show([{ name: "a long name ".repeat(9), x: steps, y: steps, colour: "red" }], view);
  const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await painted();
  const over = frame.querySelector(".u-over");
  over.dispatchEvent(new MouseEvent("mouseenter"));
  window.layoutShift = 0;
  const boxes = [];
  const edges = (one) => { const { left, right } = one.getBoundingClientRect(); return [left, right]; };
  for (const step of steps) {
    const { left, top } = over.getBoundingClientRect();
    const clientX = left + chart.plot.valToPos(step, "x");
    over.dispatchEvent(new MouseEvent("mousemove", { clientX, clientY: top + 50, bubbles: true }));
    await painted();
    boxes.push([clientX, edges(frame.querySelector(".chart-values")), edges(frame)]);
  }
  return [boxes, window.layoutShift];
}"""

LABELLED = """async ([url, log]) => {
  const { Chart } = await import(url);
  const frame = document.createElement("div");
  frame.style = "width:900px;height:140px;position:relative";
  document.querySelector("main").prepend(frame);
  const chart = new Chart(frame, { onZoom: () => {}, onHover: () => {} });
  chart.show([{ name: "loss", x: [0, 1, 2], y: [1, 1e20, 1.2e36], colour: "red" }],
    { axis: "step", log, clip: false, range: null, marks: [] });
  await new Promise(requestAnimationFrame);
  const labels = chart.plot.axes[1]._values;
  chart.show([{ name: "loss", x: [0, 1, 2], y: [1, 2, 3], colour: "red" }],
    { axis: "step", log, clip: false, range: null, marks: [] });
  await new Promise(requestAnimationFrame);
  return [labels, chart.plot.axes[1]._values];
}"""


@pytest.fixture
def job_page(visit: Visit, running_job: Any) -> Page:
    """Return the page of a running job whose loss is drawn."""
    page = visit.go(f"/jobs/{running_job.id}?tab=charts")
    page.wait_for_function(f"() => {LOSS}.curves[0]?.x.length > 10", timeout=60_000)
    # The curves are no longer those of the preview, and the page does not move any more.
    page.wait_for_function("() => document.querySelector('#chart-norm .frame')?.chart.plot")
    return page


def test_names_with_markup_are_shown_literally(visit: Visit, job_page: Page) -> None:
    shown = job_page.evaluate(DRAW, [Assets().url("chart.js"), NAMES])
    assert shown == {"texts": NAMES, "links": 0}


def test_a_chart_without_points_shows_the_reason(visit: Visit, saved_job: str) -> None:
    """Points that are being read, that cannot be read, and that do not exist, are three texts."""
    page, requests = visit.page, list[Route]()
    page.route("**/v1/jobs/*/metrics?*", lambda route: requests.append(route))
    visit.go(f"/jobs/{saved_job}")
    absence = page.locator("#charts .placeholder").first
    expect(absence).to_have_text("Loading…")
    requests.pop(0).fulfill(status=500, json={"error": {"code": "internal_error", "message": "no"}})
    expect(absence).to_have_text("The points could not be read")
    page.unroute("**/v1/jobs/*/metrics?*")
    empty = {"object": "metrics", "series": [], "next_after": 0}
    page.route("**/v1/jobs/*/metrics?*", lambda route: route.fulfill(json=empty))
    page.reload()
    expect(absence).to_have_text("No points")
    visit.ignore_errors("500")


@pytest.mark.parametrize("log", [False, True])
def test_curves_are_drawn_at_the_positions_of_the_axes(job_page: Page, *, log: bool) -> None:
    job_page.locator("#chart-options > summary").click()
    job_page.get_by_label("Log scale").first.set_checked(log)
    job_page.keyboard.press("Escape")
    job_page.wait_for_function(f"log => {LOSS}.view.log === log", arg=log)
    pairs = job_page.evaluate(
        f"""() => {LOSS}.xRange.map((value) => [{LOSS}.transform("x")(value), {LOSS}.plot.valToPos(value, "x", true)])
              .concat({LOSS}.valueTicks().map((value, n) => [{LOSS}.transform("y")(value),
                {LOSS}.plot.valToPos({LOSS}.plot.axes[1]._splits[n], "y", true)]))"""
    )
    for drawn, labelled in pairs:
        assert drawn == pytest.approx(labelled, abs=1.5)


def test_positions_on_a_logarithmic_axis_are_in_the_address(job_page: Page) -> None:
    job_page.locator("#chart-options > summary").click()
    assert_accessible(job_page, "#chart-options")
    job_page.get_by_label("Log x").check()
    expect(job_page).to_have_url(re.compile("log_x=1"))
    job_page.reload()
    expect(job_page.locator("#log-x")).to_be_checked()
    job_page.wait_for_function(f"() => {LOSS}.curves[0]?.x.length > 10 && {LOSS}.isLogX")
    pairs = job_page.evaluate(
        f"() => {LOSS}.plot.axes[0]._splits.map((value) => [{LOSS}.transform('x')(value),"
        f"  {LOSS}.plot.valToPos(value, 'x', true)])"
    )
    assert len(pairs) > 1
    for drawn, labelled in pairs:
        assert drawn == pytest.approx(labelled, abs=1.5)
    first, last = job_page.evaluate(f"() => {LOSS}.xRange")
    assert 0 < first < last


def test_search_by_text_and_by_expression_hides_other_charts(job_page: Page) -> None:
    search = job_page.get_by_label("Find a chart by text or regular expression")
    search.fill("rate")
    expect(job_page.locator(".chart:visible .chart-title")).to_have_text(["Learning rate"])
    search.fill("/^(loss|grad.*norm)$/")
    expect(job_page.locator(".chart:visible .chart-title")).to_have_text(["Loss", "Gradient norm"])
    search.fill("/(/")
    expect(job_page.locator(".chart:visible")).to_have_count(0)
    expect(job_page.locator(".chart-section:visible")).to_have_count(0)


def test_view_is_restored_from_the_address(visit: Visit, job_page: Page) -> None:
    figure = job_page.locator("#chart-norm")
    figure.hover()
    figure.get_by_role("button", name="Pin").click()
    figure.get_by_role("button", name="Log scale").click()
    job_page.locator("#chart-options > summary").click()
    job_page.locator("#clip").check()
    job_page.get_by_role("button", name="Combine metrics").click()
    for key in ("train/loss", "train/lr"):
        job_page.locator(f"#combination-list input[value='{key}']").check()
    job_page.get_by_role("button", name="Add chart").click()
    expect(job_page).to_have_url(re.compile("[?&]chart=train%2Floss%2Ctrain%2Flr"))
    job_page.goto(job_page.url)
    expect(job_page.locator(".chart-section h3")).to_contain_text(["Pinned", "Combined", "Overview"])
    expect(job_page.locator(".chart-section").first.locator(".chart-title")).to_have_text("Gradient norm")
    expect(job_page.locator("#clip")).to_be_checked()
    job_page.wait_for_function("() => document.querySelector('#chart-norm .frame').chart.view?.log")
    job_page.wait_for_function(f"() => {LOSS}.view && !{LOSS}.view.log")
    job_page.wait_for_function("() => document.querySelector('[id^=chart-combined] .frame').chart.curves.length === 2")
    job_page.locator("[id^=chart-combined]").hover()
    job_page.get_by_role("button", name="Remove this chart").click()
    expect(job_page.locator("[id^=chart-combined]")).to_have_count(0)
    expect(job_page).not_to_have_url(re.compile("[?&]chart="))


def test_dragging_zooms_and_a_double_click_shows_all(job_page: Page) -> None:
    box = job_page.locator("#chart-loss .u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    job_page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    job_page.mouse.down()
    job_page.mouse.move(box["x"] + box["width"] * 0.75, middle, steps=5)
    job_page.mouse.up()
    expect(job_page).to_have_url(re.compile("zoom="))
    job_page.wait_for_function(f"() => {LOSS}.view.range && {LOSS}.xRange[0] > 0")
    job_page.mouse.dblclick(box["x"] + box["width"] / 2, middle)
    job_page.wait_for_function(f"() => {LOSS}.view.range === null")
    expect(job_page).not_to_have_url(re.compile("zoom="))


def test_pointer_and_values_are_shown_in_all_charts(job_page: Page) -> None:
    job_page.locator("#chart-loss .u-over").hover(position={"x": 100, "y": 20})
    expect(job_page.locator("#chart-loss .chart-values")).to_contain_text(re.compile(r"step \d+.*loss"))
    job_page.wait_for_function(
        "() => { const { cursor } = document.querySelector('#chart-norm .frame').chart.plot; return cursor.left > 0; }"
    )
    expect(job_page.locator("#chart-norm output")).to_have_text(re.compile(r"\d"))
    job_page.mouse.move(2, 2)
    expect(job_page.locator("#chart-loss .chart-values")).to_be_hidden()


def test_the_values_stay_in_the_chart_and_move_nothing_else(visit: Visit, job_page: Page) -> None:
    boxes, shift = job_page.evaluate(
        f"async (url) => {{ {MEASURE_SHIFTS} return await ({FOLLOWED})(url); }}", Assets().url("chart.js")
    )
    for pointer, (left, right), (start, end) in boxes:
        assert start <= left < right <= end
        assert not left <= pointer <= right
    assert shift < 0.002


def test_enlarged_chart_returns_to_its_section(job_page: Page) -> None:
    job_page.locator("#chart-loss").hover()
    job_page.locator("#chart-loss").get_by_role("button", name="Enlarge").click()
    job_page.wait_for_function("() => document.querySelector('dialog.enlarged #chart-loss canvas')?.clientHeight > 400")
    job_page.keyboard.press("Escape")
    expect(job_page.locator(".charts > .chart").first).to_have_id("chart-loss")
    job_page.locator("#chart-loss").get_by_role("button", name="Enlarge").click()
    dialog = job_page.get_by_role("dialog", name="Chart")
    dialog.locator("summary[aria-label=Export]").click()
    job_page.keyboard.press("Escape")
    expect(dialog.get_by_role("button", name="PNG image")).to_be_hidden()
    dialog.get_by_role("button", name="Close").click()
    expect(job_page.locator(".charts > .chart").first).to_have_id("chart-loss")


def test_menu_of_a_chart_closes_by_escape_and_by_a_click_elsewhere(job_page: Page) -> None:
    button = job_page.locator("#chart-loss summary[aria-label=Export]")
    menu = job_page.locator("#chart-loss .menu > div")
    for by_key in (True, False):
        job_page.locator("#chart-loss").hover()
        button.click()
        expect(menu).to_be_visible()
        assert menu.evaluate("box => box.scrollWidth <= box.clientWidth && box.clientWidth > 60")
        menu.get_by_role("button", name="SVG image").focus()
        if by_key:
            job_page.keyboard.press("Escape")
        else:
            job_page.locator("#chart-loss .chart-title").click()
        expect(menu).to_be_hidden()
        expect(button).to_be_focused()


def test_values_at_the_pointer_name_the_step_of_each_point(visit: Visit) -> None:
    visit.go("/compare")
    texts = visit.page.evaluate(POINTED, Assets().url("chart.js"))
    assert texts == {
        "near 18.4": ["step 18", "loss", "18", "eval", "step 20", "2"],
        "near 19.8": ["step 20", "loss", "20", "eval", "2"],
        "line": pytest.approx(20, abs=0.02),
    }


@pytest.mark.parametrize("log", [False, True])
def test_large_values_have_labels(visit: Visit, *, log: bool) -> None:
    visit.go("/compare")
    labels, smaller = visit.page.evaluate(LABELLED, [Assets().url("chart.js"), log])
    assert labels == (["1000", "1e8", "1e13", "1e18", "1e23", "1e28", "1e33"] if log else ["0", "5e35", "1e36"])
    assert smaller == (["1", "2"] if log else ["1", "2", "3"])


def test_exports_have_the_points(job_page: Page) -> None:
    def export(label: str) -> Download:
        job_page.locator("#chart-loss").hover()
        job_page.locator("#chart-loss summary[aria-label=Export]").click()
        with job_page.expect_download() as download:
            job_page.locator("#chart-loss").get_by_role("button", name=label).click()
        return download.value

    table = export("CSV table")
    rows = list(csv.reader(io.StringIO(Path(table.path()).read_text())))
    assert (table.suggested_filename, rows[0]) == ("watched-b-closely-b-Loss.csv", ["step", "loss"])
    drawn: list[int] = job_page.evaluate(f"{LOSS}.curves[0].x")
    assert [int(row[0]) for row in rows[1:]] == drawn[: len(rows) - 1]
    assert Path(export("PNG image").path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = Path(export("SVG image").path()).read_text()
    assert re.search(r'<path d="M[\d.]+ [\d.]+L', svg)


def test_outliers_are_clipped_only_on_request(script_tab: Page) -> None:
    ranges = script_tab.evaluate(
        """async (url) => {
          const { valueRange } = await import(url);
          const y = Array.from({ length: 100 }, (_, i) => (i === 50 ? 1000 : i / 100));
          const curves = [{ x: y.map((_, i) => i), y }];
          return [valueRange(curves), valueRange(curves, { clip: true }), valueRange(curves, { range: [0, 10] }),
                  valueRange([{ x: [0, 1], y: [0, 10] }], { log: true }), valueRange([{ x: [0], y: [2] }])];
        }""",
        Assets().url("chart_axes.js"),
    )
    assert ranges[0][1] > 1000
    assert ranges[1][1] < 1.1
    assert ranges[2] == pytest.approx([-0.005, 0.105])
    assert ranges[3] == pytest.approx([5, 20])
    assert ranges[4] == pytest.approx([1, 3])


def test_axis_of_memory_starts_at_zero_and_labels_of_close_values_differ(script_tab: Page) -> None:
    ranges, labels = script_tab.evaluate(
        """async (url) => {
          const { valueRange, valueLabels } = await import(url);
          const curves = [{ x: [0, 1], y: [0.3658, 0.3666] }];
          return [[valueRange(curves, { fromZero: true }), valueRange(curves, { fromZero: true, log: true }),
                   valueRange([{ x: [0, 1], y: [-1, 1] }], { fromZero: true })],
                  [valueLabels([0.36661, 0.36662, 0.36663]), valueLabels([0, 50, 100]), valueLabels([7])]];
        }""",
        Assets().url("chart_axes.js"),
    )
    assert ranges[0] == pytest.approx([0, 0.3666 * 1.05])
    assert ranges[1][0] > 0.36
    assert ranges[2] == pytest.approx([-1.1, 1.1])
    assert labels == [["0.36661", "0.36662", "0.36663"], ["0", "50", "100"], ["7"]]


def test_runs_of_one_name_have_the_end_of_their_id(script_tab: Page) -> None:
    names = script_tab.evaluate(
        """async (url) => (await import(url)).withDistinctNames([
          { id: "job_aaaa1111", name: "a" }, { id: "job_bbbb2222", name: "a" }, { id: "job_cccc3333", name: "b" },
        ]).map(({ name }) => name)""",
        Assets().url("job_rows.js"),
    )
    assert names == ["a …1111", "a …2222", "b"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0095, 2.5, [0.01, 0.1, 1]),
        (0.04, 2.5, [0.05, 0.1, 0.2, 0.5, 1, 2]),
        (3e-21, 4.0, [1e-18, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1]),
        (0.31, 0.33, [0.31, 0.315, 0.32, 0.325, 0.33]),
    ],
)
def test_logarithmic_axis_has_round_values(script_tab: Page, low: float, high: float, expected: list[float]) -> None:
    ticks = script_tab.evaluate(
        "async ([url, range]) => (await import(url)).logTicks(range)", [Assets().url("chart_axes.js"), [low, high]]
    )
    assert ticks == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("zoom=3:1&smooth=7&x=nothing", {"range": None, "weight": 0.99, "axis": "step"}),
        ("zoom=1:2:3&smooth=x", {"range": None, "weight": 0}),
        ("zoom=1.5:20&x=time&log=1", {"range": [1.5, 20], "axis": "time", "log": True}),
    ],
)
def test_invalid_parts_of_an_address_have_their_defaults(
    script_tab: Page, address: str, expected: dict[str, Any]
) -> None:
    view = script_tab.evaluate(
        "async ([url, text]) => (await import(url)).readView(new URLSearchParams(text), ['step', 'time'])",
        [Assets().url("chart_view.js"), address],
    )
    assert {name: view[name] for name in expected} == expected
