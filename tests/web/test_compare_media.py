"""The media of several runs side by side, on the page that compares them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World
from tests.web.test_artifacts import PNG
from tests.web.test_job import MEASURE_SHIFTS

pytestmark = [pytest.mark.web]
TIME = "2026-01-01T00:00:00Z"
HOSTILE = "<img src=x onerror=alert(1)>"
WAV = (
    b"RIFF"
    + bytes([44, 0, 0, 0])
    + b"WAVEfmt "
    + bytes([16, 0, 0, 0, 1, 0, 1, 0, 64, 31, 0, 0, 64, 31, 0, 0, 1, 0, 8, 0])
)
WAV += b"data" + bytes([8, 0, 0, 0]) + bytes([128] * 8)


@dataclass(frozen=True)
class Runs:
    """A tab, and runs: with all steps, one that ended early, one without media, and one that runs."""

    tab: Visit
    complete: str
    short: str
    empty: str
    running: str

    def address(self, *ids: str, query: str = "") -> str:
        return "/compare?" + "&".join(f"job={one}" for one in ids or self.ids) + query

    @property
    def ids(self) -> tuple[str, ...]:
        return self.complete, self.short, self.empty, self.running


def run_with_media(world: World, name: str, steps: tuple[int, ...], *, ends: bool = True) -> str:
    """Return a run with an image of each step, and a medium of each other kind at its first."""
    job = world.submit(name=name)
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0 / (step + 1)) for step in (1, 2, 3)])
    folder = world.app_state.run_layout(job).artifacts
    folder.mkdir(parents=True)
    files = {
        "text": ("notes", "note.txt", HOSTILE.encode()),
        "table": ("rows", "rows.csv", b"a,b\n1,2\n"),
        "audio": ("sound", "sound.wav", WAV),
    }
    items: list[dict[str, object]] = []
    for step in steps:
        (folder / f"{step}.png").write_bytes(PNG)
        item = {"key": "samples", "step": step, "type": "image", "path": f"{step}.png", "caption": f"{HOSTILE} {step}"}
        items.append(item)
    for kind, (key, path, content) in files.items() if steps else ():
        (folder / path).write_bytes(content)
        items.append({"key": key, "step": steps[0], "type": kind, "path": path})
    if steps:
        bars = {"bins": [0, 1, 2], "values": [3, 4]}
        items.append({"key": "weights", "step": steps[0], "type": "histogram", "histogram": bars})
        report = {"execution": 1, "items": [{**one, "time": TIME} for one in items]}
        assert worker.post("media", report).status_code == 200
    if ends:
        worker.end("completed")
    world.reconciler.run_once()
    return job


@pytest.fixture(scope="module")
def runs(browser: Browser, world: World) -> Iterator[Runs]:
    complete = run_with_media(world, "complete", (0, 50, 100, 150))
    short = run_with_media(world, "short", (20, 90))
    empty = run_with_media(world, "empty", ())
    running = run_with_media(world, "running", (100,), ends=False)
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield Runs(tab, complete, short, empty, running)


def cell(page: Page, name: str) -> Locator:
    return page.locator("#media-runs li").filter(has=page.get_by_role("link", name=name, exact=True))


def opened(runs: Runs, query: str = "") -> Page:
    page = runs.tab.go(runs.address(query=query))
    page.locator("#media").scroll_into_view_if_needed()
    expect(cell(page, "complete").locator("img, rect, audio, td, pre").first).to_be_attached()
    return page


def test_each_run_shows_the_nearest_earlier_step_and_its_true_one(runs: Runs) -> None:
    with runs.tab.lent():
        page = opened(runs)
        labels = {name: cell(page, name).locator("p").nth(1) for name in ("complete", "short", "empty", "running")}
        expect(labels["complete"]).to_have_text("step 150")
        expect(labels["short"]).to_have_text("step 90, the last: the run has ended")
        expect(labels["empty"]).to_have_text("None; the run has ended.")
        expect(labels["running"]).to_have_text("step 100, the nearest before")
        expect(cell(page, "complete").locator("figcaption")).to_have_text(f"{HOSTILE} 150")
        page.locator("#media-step").fill("95")
        page.keyboard.press("Enter")
        expect(labels["complete"]).to_have_text("step 50, the nearest before")
        expect(cell(page, "complete").locator("figcaption")).to_have_text(f"{HOSTILE} 50")
        expect(labels["running"]).to_have_text("None up to step 95; the first is of step 100.")
        expect(page).to_have_url(re.compile("[?&]step=95"))
        expect(page.get_by_label("Step of the media")).to_have_js_property("value", "3")
        assert_accessible(page, "#media")
        page.set_viewport_size({"width": 390, "height": 800})
        page.wait_for_function("() => document.documentElement.scrollWidth <= 390")


def test_the_slider_is_moved_by_the_keyboard(runs: Runs) -> None:
    with runs.tab.lent():
        page = opened(runs)
        slider = page.get_by_label("Step of the media")
        slider.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuetext", "step 100")
        expect(cell(page, "complete").locator("figcaption")).to_have_text(f"{HOSTILE} 100")
        slider.press("Home")
        expect(cell(page, "complete").locator("figcaption")).to_have_text(f"{HOSTILE} 0")
        expect(cell(page, "short").locator("p").nth(1)).to_have_text("None up to step 0; the first is of step 20.")
        slider.press("End")
        expect(cell(page, "complete").locator("figcaption")).to_have_text(f"{HOSTILE} 150")
        assert "step=" not in page.url, "the end follows the newest step"


@pytest.mark.parametrize(
    ("key", "content"),
    [("notes", "pre"), ("rows", "td"), ("sound", "audio"), ("weights", "rect")],
)
def test_each_kind_is_shown(runs: Runs, key: str, content: str) -> None:
    with runs.tab.lent():
        page = opened(runs, f"&media={key}")
        expect(page.locator("#media-key")).to_have_value(key)
        for name in ("complete", "short", "running"):
            expect(cell(page, name).locator(content).first).to_be_attached()
        expect(page.locator("#media-key option").filter(has_text=key)).to_have_text(
            re.compile(rf"^{key} \(\w+, 3 of 4 runs\)$")
        )


def test_a_hidden_run_has_no_media(runs: Runs) -> None:
    with runs.tab.lent():
        page = opened(runs)
        page.get_by_label("Show complete").uncheck()
        expect(cell(page, "complete")).to_be_hidden()
        expect(page.locator("#media-note")).to_have_text("newest: step 100")
        expect(cell(page, "short")).to_be_visible()


def test_loading_and_refusal_differ_from_none(runs: Runs) -> None:
    with runs.tab.lent():
        page = runs.tab.page
        held: list[Route] = []
        page.route(f"**/v1/jobs/{runs.complete}/media?*", lambda route: held.append(route))
        denied = json.dumps({"error": {"message": "no", "type": "permission_error", "code": "no_permission"}})
        page.route(f"**/v1/jobs/{runs.short}/media?*", lambda route: route.fulfill(status=403, body=denied))
        runs.tab.go(runs.address())
        page.locator("#media").scroll_into_view_if_needed()
        expect(cell(page, "short").locator(".preview")).to_have_text(re.compile("^You may not read"))
        expect(cell(page, "complete").locator("p").nth(1)).to_have_text("Loading…")
        expect(cell(page, "empty").locator("p").nth(1)).to_have_text("None; the run has ended.")
        page.unroute(f"**/v1/jobs/{runs.complete}/media?*")
        for route in held:
            route.continue_()
        expect(cell(page, "complete").locator("p").nth(1)).to_have_text("step 150")
        page.unroute(f"**/v1/jobs/{runs.short}/media?*")
        runs.tab.ignore_errors("Failed to load resource")


@pytest.mark.cpu_seconds(6)
def test_media_of_many_runs_are_read_in_view_without_shifts(runs: Runs, browser: Browser, world: World) -> None:
    many = [run_with_media(world, f"run-{n}", (n, n + 1)) for n in range(46)]
    with open_signed_in_tab(browser, runs.tab.url, world.token) as tab:
        page = tab.page
        page.add_init_script(MEASURE_SHIFTS)
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        tab.go(runs.address(*runs.ids, *many))
        page.locator("#media").scroll_into_view_if_needed()
        expect(cell(page, "complete").locator("img")).to_be_attached()
        page.wait_for_load_state("networkidle")
        first = len({url for url in requests if "/artifacts/" in url})
        assert 0 < first < 25, first
        page.locator("#media-runs").evaluate("list => list.scrollTo(0, list.scrollHeight)")
        expect(cell(page, "run-45").locator("img")).to_be_attached()
        expect(cell(page, "complete").locator("img")).to_have_count(0)
        slider = page.get_by_label("Step of the media")
        for _ in range(30):
            slider.press("ArrowLeft")
        page.wait_for_load_state("networkidle")
        assert page.locator("#media-runs img").count() < 25, "images out of view are released"
        assert page.evaluate("window.layoutShift") < 0.02
