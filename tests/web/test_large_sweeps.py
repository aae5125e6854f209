"""The page of a sweep with many runs: it is made in parts, and it is updated in place."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from service.web.assets import Assets
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import SPEC, World

pytestmark = [pytest.mark.web]

RUNS = 120
RATES = [number / 1000 for number in range(1, RUNS + 1)]

Site = tuple[World, str, dict[str, Any]]
"""A service, its URL, and a sweep of which the first run trains and the others wait."""


@pytest.fixture(scope="module")
def site(world: World) -> Iterator[Site]:
    body = {"name": "rates", "spec": {**SPEC, "name": "rates"}, "grid": {"optimizer.lr": RATES}, "max_parallel": 1}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    sweep = answer.json()
    worker = world.start(sweep["members"][0]["job_id"])
    worker.metrics([(f"{group}/{name}", 1, 0.5) for group in ("train", "eval", "layer") for name in ("loss", "norm")])
    with served(world) as url:
        yield world, url, sweep


@pytest.fixture(scope="module")
def tab(browser: Browser, site: Site) -> Iterator[Visit]:
    world, url, _ = site
    with open_signed_in_tab(browser, url, world.token) as visit:
        yield visit


@pytest.fixture
def visit(tab: Visit, site: Site) -> Iterator[Visit]:
    """A tab with the page of the sweep."""
    _, _, sweep = site
    with tab.lent():
        tab.go(f"/compare?sweep={sweep['id']}")
        yield tab


def work_in_parts(page: Page, aborted: bool) -> tuple[list[int], bool, int]:
    """Work on three slow items; return those that were done, whether all were, and the paints in between."""
    done: tuple[list[int], bool, int] = page.evaluate(
        """async ([url, isAborted]) => {
          const { inParts } = await import(url);
          const done = [], controller = new AbortController();
          let paints = 0, isWorking = true;
          const count = () => { paints += 1; if (isWorking) requestAnimationFrame(count); };
          requestAnimationFrame(count);
          const slow = (item) => {
            for (const end = performance.now() + 30; performance.now() < end;);
            done.push(item);
          };
          const all = inParts([1, 2, 3], slow, controller.signal);
          if (isAborted) controller.abort();
          const wasCompleted = await all;
          isWorking = false;
          return [done, wasCompleted, paints];
        }""",
        [Assets().url("parts.js"), aborted],
    )
    return done


def test_the_page_is_painted_between_the_parts_of_long_work(visit: Visit) -> None:
    items, is_complete, paints = work_in_parts(visit.page, aborted=False)
    assert (items, is_complete) == ([1, 2, 3], True)
    assert paints >= 2


def test_newer_work_ends_that_of_an_earlier_state(visit: Visit) -> None:
    items, is_complete, _ = work_in_parts(visit.page, aborted=True)
    assert (items, is_complete) == ([1], False)


def test_each_run_is_ranked_drawn_and_listed(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#ranking tbody tr")).to_have_count(RUNS)
    expect(page.locator("#runs tbody tr")).to_have_count(RUNS)
    expect(page.locator("#parallel path")).to_have_count(RUNS)
    assert page.locator("#ranking tbody td:nth-child(5)").all_text_contents() == [f"{rate:g}" for rate in RATES]
    assert page.locator("#runs tbody td:nth-child(4)").all_text_contents() == [f"{rate:g}" for rate in RATES]


def test_a_long_ranking_leaves_the_curves_on_the_second_screen(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#ranking tbody tr")).to_have_count(RUNS)
    curves = page.locator("#curves").bounding_box()
    assert curves is not None
    assert page.viewport_size is not None
    assert curves["y"] < 2 * page.viewport_size["height"]


def test_a_change_leaves_the_rows_and_the_focus_in_place(visit: Visit, site: Site) -> None:
    world, _, sweep = site
    page = visit.page
    rows = page.locator("#ranking tbody tr")
    expect(rows).to_have_count(RUNS)
    second = rows.filter(has=page.get_by_role("link", name="rates #1", exact=True))
    link = second.get_by_role("link")
    link.focus()
    page.evaluate("() => { window.firstRows = [...document.querySelectorAll('#ranking tbody tr')]; }")
    job_id = sweep["members"][1]["job_id"]
    assert world.client.post(f"/v1/jobs/{job_id}/cancel").status_code < 300
    world.tick()
    expect(second.locator(".chip")).to_have_text("cancelled")
    expect(page.locator(f'#runs tr[data-id="{job_id}"] .chip')).to_have_text("cancelled")
    expect(link).to_be_focused()
    assert page.evaluate("() => window.firstRows.every((row) => row.isConnected)")


def test_the_charts_of_a_closed_section_are_made_when_it_is_opened(visit: Visit) -> None:
    page = visit.page
    section = page.locator(".chart-section", has=page.get_by_role("heading", name="layer", exact=True))
    expect(section.locator("summary small")).to_have_text("2")
    expect(section.locator("figure")).to_have_count(0)
    section.locator("summary").click()
    expect(section.locator("figure")).to_have_count(2)
    expect(section.locator("canvas")).to_have_count(2)


def test_only_runs_that_can_have_changed_are_read_again(visit: Visit, site: Site) -> None:
    _, _, sweep = site
    page = visit.page
    page.locator("#chart-selected").scroll_into_view_if_needed()
    expect(page.locator("#chart-selected canvas")).to_be_visible()
    request = page.wait_for_event("request", lambda request: "/v1/metrics?" in request.url)
    assert parse_qs(urlsplit(request.url).query)["job"] == [sweep["members"][0]["job_id"]]


@pytest.mark.parametrize(("table", "nth"), [("ranking", 5), ("runs", 4)])
def test_heads_sort_the_rows_with_the_keyboard(visit: Visit, table: str, nth: int) -> None:
    page = visit.page
    rates = page.locator(f"#{table} tbody td:nth-child({nth})")
    expect(rates).to_have_count(RUNS)
    head = page.locator(f"#{table} thead th:nth-child({nth})")
    button = head.get_by_role("button", name="optimizer.lr", exact=True)
    in_order = [f"{rate:g}" for rate in RATES]
    for sort, texts in (("ascending", in_order), ("descending", in_order[::-1]), (None, in_order)):
        button.press("Enter")
        expect(rates).to_have_text(texts)
        expect(button).to_be_focused()
        assert head.get_attribute("aria-sort") == sort
    expect(page.locator("#ranking thead th").first).to_have_attribute("aria-sort", "ascending")


def test_runs_without_a_value_are_last_in_both_orders(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#runs tbody tr")).to_have_count(RUNS)
    expect(page.locator("#runs tbody .at").first).to_have_text("0.5")
    page.get_by_role("columnheader", name="Value").get_by_role("button").click()
    expect(page.locator("#runs tbody .at").first).to_have_text("0.5")
    page.get_by_role("columnheader", name="Value").get_by_role("button").click()
    expect(page.locator("#runs tbody .at").first).to_have_text("0.5")


def test_a_trial_that_was_stopped_early_is_so_in_all_tables(visit: Visit) -> None:
    def stop(route: Route) -> None:
        sweep = (answer := route.fetch()).json()
        sweep["members"][2].update(state="stopped_early", status="cancelled")
        route.fulfill(response=answer, json=sweep)

    page = visit.page
    expect(page.locator("#runs tbody tr")).to_have_count(RUNS)
    page.route("**/v1/sweeps/*", stop)
    for table in ("ranking", "runs"):
        row = page.locator(f"#{table} tbody tr", has=page.get_by_role("link", name=re.compile(r"^rates #2\b")))
        expect(row.locator(".chip")).to_have_text("stopped early")
    page.unroute_all(behavior="wait")


def test_scatter_offers_all_metrics(visit: Visit) -> None:
    page = visit.page
    offered = page.locator("#scatter-x option").all_text_contents()
    assert offered[:2] == ["optimizer.lr", "eval/loss"]
    assert "layer/norm" in offered
    page.locator("#scatter-x").select_option("layer/norm")
    expect(page.locator("#scatter .title").first).to_have_text("layer/norm")
    expect(page.locator("#scatter circle")).to_have_count(1)


def test_changes_of_a_member_are_written_as_in_the_tables(script_tab: Page) -> None:
    changes = script_tab.evaluate(
        """async ([url, values]) => (await import(url)).memberChanges({ values })""",
        [Assets().url("member_texts.js"), {"optimizer.lr": 0.00026353012, "name": "adamw", "batch.size": 32}],
    )
    assert changes == "lr 2.635e-4, name adamw, size 32"


def test_values_of_a_member_are_in_sight_in_narrow_windows(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    page = visit.go("/jobs")
    changes = page.locator("tr.job .name small", has_text=re.compile("^lr"))
    expect(changes.first).to_be_visible()
    sizes = changes.first.evaluate("box => [box.scrollWidth, box.clientWidth, box.scrollHeight, box.clientHeight]")
    assert sizes[:2] == [sizes[1]] * 2, sizes
    page.set_viewport_size({"width": 1280, "height": 800})


def test_the_width_of_the_charts_is_read_before_the_ranking_has_rows(site: Site, browser: Browser) -> None:
    """Reading it later would lay out the rows of all members within the first task of the page."""
    world, url, sweep = site
    with open_signed_in_tab(browser, url, world.token) as visit:
        visit.page.add_init_script(
            """const { get } = Object.getOwnPropertyDescriptor(Element.prototype, "clientWidth");
            window.rowsAtReads = [];
            Object.defineProperty(Element.prototype, "clientWidth", { get() {
              if (this.id === "charts") window.rowsAtReads.push(document.querySelectorAll("#ranking tbody tr").length);
              return get.call(this);
            } });"""
        )
        page = visit.go(f"/compare?sweep={sweep['id']}")
        expect(page.locator("#ranking tbody tr").first).to_be_visible()
        assert page.evaluate("window.rowsAtReads") == [0]


@pytest.mark.parametrize(
    ("runs", "points", "expected"),
    [(50, 16, (True, 1.6)), (50, 17, (False, 1.6)), (51, 2, (True, 1)), (51, 16, (False, 1))],
)
def test_curves_of_many_runs_are_thin_lines(
    script_tab: Page, runs: int, points: int, expected: tuple[bool, float]
) -> None:
    curve = script_tab.evaluate(
        """async ([url, runs, points]) => {
          const { RunCurves } = await import(url);
          const x = Array.from({ length: points }, (_, n) => n);
          const page = { runs: Array.from({ length: runs }), highlighted: null, curveOf: () => ({ x, y: x }) };
          return RunCurves.prototype.curve.call(page, { keys: ["eval/loss"] }, "eval/loss", { id: "a", name: "a" }, 0);
        }""",
        [Assets().url("run_curves.js"), runs, points],
    )
    assert (curve["dots"], curve["width"]) == expected
