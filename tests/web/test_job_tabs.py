"""The tabs of a job's page, and the log beside them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from service.web.assets import Assets
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World
from tests.web.test_job import FAILURE, MEASURE_SHIFTS

pytestmark = [pytest.mark.web]

NAMES = ["Overview", "Charts", "Media", "Log", "Spec & code", "History"]


@pytest.fixture(scope="module")
def pages(browser: Browser, world: World) -> Iterator[tuple[Visit, dict[str, str]]]:
    """A tab, and the addresses of a job that has succeeded and of one that has failed."""
    addresses = {}
    for name, reason in (("good", "completed"), ("bad", "error")):
        job = world.submit(name=name)
        worker = world.start(job)
        worker.metrics([("train/loss", step, 1.0 / step) for step in range(1, 20)])
        worker.log("0", 0, b"".join(b"line %d\n" % number for number in range(500)))
        for step in (5, 10, 15):
            worker.checkpoint(step)
        worker.end(reason, **({"failure": FAILURE, "step": 19} if reason == "error" else {}))
        world.reconciler.run_once()
        addresses[name] = f"/jobs/{job}"
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, addresses


@pytest.fixture
def visit(pages: tuple[Visit, dict[str, str]]) -> Iterator[Visit]:
    with pages[0].lent():
        yield pages[0]


def selected(visit: Visit) -> Any:
    return visit.page.locator("[role='tab'][aria-selected='true']")


def test_a_tab_is_in_the_address_and_remembered(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    good, bad = pages[1]["good"], pages[1]["bad"]
    page = visit.go(good)
    expect(page.get_by_role("tab")).to_have_text(NAMES)
    expect(selected(visit)).to_have_text("Overview")
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#events li")).not_to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?tab=history$"))
    expect(page.locator("#log")).to_be_hidden()
    visit.go(good)
    expect(selected(visit)).to_have_text("History")
    visit.go(f"{good}?tab=spec")
    expect(selected(visit)).to_have_text("Spec & code")
    visit.go(bad)
    expect(selected(visit)).to_have_text("Overview")
    visit.go(f"{bad}?tab=history")
    expect(selected(visit)).to_have_text("History")


def test_back_and_forward_walk_through_the_tabs_of_a_job(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    visit.go("/help")
    page = visit.go(pages[1]["good"])
    first = selected(visit).inner_text()
    names = [name for name in NAMES if name != first][:2]
    for name in names:
        page.get_by_role("tab", name=name).click()
    page.get_by_role("button", name="Log beside").click()
    page.go_back()
    expect(selected(visit)).to_have_text(names[0])
    expect(page.locator("#log")).to_be_hidden()
    page.go_back()
    expect(selected(visit)).to_have_text(first)
    page.go_forward()
    page.go_forward()
    expect(selected(visit)).to_have_text(names[1])
    expect(page.locator("#log .line").last).to_be_in_viewport()
    page.get_by_role("tab", name=names[1]).click()  # it is current, so that the history has no entry for it
    for _ in range(3):
        page.go_back()
    expect(page).to_have_url(re.compile("/help$"))


def test_links_without_a_tab_lead_to_what_they_name(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    for parameters, name in (("line=40", "Log"), ("grep=line", "Log"), ("find=loss", "Charts"), ("tab=x", "Overview")):
        visit.go(f"{pages[1]['good']}?{parameters}")
        expect(selected(visit)).to_have_text(name)


def test_tabs_are_walked_with_arrow_keys(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    page = visit.go(pages[1]["good"])
    page.get_by_role("tab", name="Overview").focus()
    walked = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        expect(selected(visit)).to_be_focused()
        walked.append(selected(visit).inner_text())
    assert walked == ["Charts", "Media", "Charts", "History", "Overview", "History", "Overview"]
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Log beside")).to_be_focused()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_log_is_one_click_away_on_each_tab(
    visit: Visit, pages: tuple[Visit, dict[str, str]], size: tuple[int, int]
) -> None:
    page = visit.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for tab in ("charts", "media", "spec", "history"):
        visit.go(f"{pages[1]['good']}?tab={tab}")
        expect(page.locator("#log")).to_be_hidden()
        page.get_by_role("button", name="Log beside").click()
        expect(page.locator("#log .line").last).to_be_in_viewport()
        expect(page.locator("#log .line").last).to_have_text("line 499")
        expect(page).to_have_url(re.compile("[?&]drawer=log"))
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    page.reload()
    expect(page.locator("#log .line").last).to_be_in_viewport()
    page.get_by_role("button", name="Close the log").click()
    expect(page.locator("#log")).to_be_hidden()
    expect(page.get_by_role("button", name="Log beside")).to_be_focused()
    expect(page).not_to_have_url(re.compile("drawer="))
    page.keyboard.press("l")
    expect(page.locator("#log")).to_be_focused()
    page.keyboard.press("l")
    expect(page.locator("#log")).to_be_hidden()


def test_the_log_next_to_the_charts_leaves_them_in_sight(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    page = visit.go(f"{pages[1]['good']}?tab=charts&drawer=log")
    page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.plot")
    chart, log = page.locator("#chart-loss").bounding_box(), page.locator("#log-card").bounding_box()
    assert chart is not None
    assert log is not None
    assert chart["x"] + chart["width"] <= log["x"]


def test_a_failed_job_begins_with_its_cause_on_each_tab(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    page = visit.go(pages[1]["bad"])
    cause = FAILURE["message"]
    expect(page.locator("#panel h2").first).to_have_text(cause)
    expect(page.get_by_role("button", name=cause)).to_be_hidden()  # the panel states it
    page.get_by_role("tab", name="Charts").click()
    expect(page.locator("#panel h2").first).to_be_hidden()
    page.get_by_role("button", name=cause).click()
    expect(page.locator("#panel h2").first).to_be_visible()


def test_summary_and_actions_stay_in_sight(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    page = visit.page
    page.set_viewport_size({"width": 1000, "height": 400})
    visit.go(pages[1]["good"])
    page.mouse.wheel(0, 5000)
    page.wait_for_function("() => scrollY > 200")
    for one in (page.locator("#status"), page.locator("#fact-loss"), page.get_by_role("link", name="Fork")):
        expect(one).to_be_in_viewport()
    page.get_by_role("tab", name="Spec & code").click()
    expect(page.get_by_role("heading", name="Spec resolved")).to_be_in_viewport()


def test_on_a_phone_the_current_tab_and_page_are_in_sight(visit: Visit, pages: tuple[Visit, dict[str, str]]) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    page = visit.go(f"{pages[1]['good']}?tab=history")
    expect(page.get_by_role("tab", name="History")).to_be_in_viewport(ratio=0.95)
    page = visit.go("/help")
    expect(page.get_by_role("link", name="Help", exact=True)).to_be_in_viewport(ratio=0.95)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("tab", ["overview", "charts", "media", "log", "spec", "history"])
def test_nothing_moves_while_a_tab_loads(
    visit: Visit, pages: tuple[Visit, dict[str, str]], tab: str, width: int
) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.add_init_script(MEASURE_SHIFTS)
    page = visit.go(f"{pages[1]['good']}?tab={tab}")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.layoutShift") < 0.02


@pytest.mark.parametrize(
    ("address", "status", "remembered", "expected"),
    [
        ("", "running", None, "overview"),
        ("", "running", "charts", "charts"),
        ("", "running", "gone", "overview"),
        ("", "failed", "charts", "overview"),
        ("tab=log", "failed", "charts", "log"),
        ("tab=gone", "running", "charts", "overview"),
        ("tab=gone&level=error", "running", "charts", "log"),
    ],
)
def test_first_tab(script_tab: Any, address: str, status: str, remembered: str | None, expected: str) -> None:
    call = """async ([url, text, ...rest]) =>
      (await import(url)).firstTab(new URLSearchParams(text), ["overview", "charts", "log"], ...rest)"""
    assert script_tab.evaluate(call, [Assets().url("job_tabs.js"), address, status, remembered]) == expected
