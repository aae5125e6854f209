"""What a program logged beside numbers, on the page of its job."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import MEASURE_SHIFTS, Visit, open_signed_in_tab, open_tab
from tests.support.live_world import served
from tests.support.world import World
from tests.web.test_artifacts import PNG

pytestmark = [pytest.mark.web]
TIME = "2026-01-01T00:00:00Z"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page_of_job(browser: Browser, world: World) -> Iterator[tuple[Visit, str]]:
    """A tab, and the address of a job with images at three steps and a histogram."""
    job = world.submit(name="with-media")
    worker = world.start(job)
    worker.metrics([("train/loss", step, 1.0 / step) for step in (1, 2, 3)])
    folder = world.app_state.run_layout(job).artifacts
    folder.mkdir(parents=True)
    images = [
        {"key": "größe <b>", "step": step, "position": position, "type": "image", "path": f"{step}_{position}.png"}
        for step in (1, 150, 20)
        for position in (1, 0)
    ]
    for one in images:
        (folder / str(one["path"])).write_bytes(PNG)
        one["caption"] = f"{HOSTILE} {one['step']} {one['position']}"
    bars = {"key": "weights", "step": 3, "type": "histogram", "histogram": {"bins": [0, 1, 2], "values": [3, 4]}}
    pages = [
        {"key": "pages", "step": 1, "position": position, "type": kind, "path": f"page.{end}", "caption": kind}
        for position, (kind, end) in enumerate((("html", "html"), ("video", "mp4"), ("object3d", "obj")))
    ]
    for one in pages:
        (folder / str(one["path"])).write_text(HOSTILE)
    items = [{**one, "time": TIME} for one in (*images, bars, *pages)]
    assert worker.post("media", {"execution": 1, "items": items}).status_code == 200
    worker.end("completed")
    world.reconciler.run_once()
    with served(world) as url, open_signed_in_tab(browser, url, world.token) as tab:
        yield tab, f"/jobs/{job}?tab=media"


def test_media_are_shown_by_key_and_step(page_of_job: tuple[Visit, str]) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.go(address)
        page = tab.page
        panel = page.get_by_role("region", name="größe <b>")
        panel.scroll_into_view_if_needed()
        expect(panel.locator("output")).to_have_text("step 150")
        expect(panel.locator("figcaption")).to_have_text([f"{HOSTILE} 150 0", f"{HOSTILE} 150 1"])
        expect(panel.locator("img").first).to_have_js_property("naturalWidth", 2)
        panel.get_by_role("slider").press("ArrowLeft")
        expect(panel.locator("output")).to_have_text("step 20")
        expect(panel.locator("figcaption").first).to_have_text(f"{HOSTILE} 20 0")
        expect(page.get_by_role("region", name="weights").locator("rect")).to_have_count(2)
        page.get_by_label("at step").fill("149")
        page.keyboard.press("Enter")
        expect(panel.locator("output")).to_have_text("step 20")
        page.get_by_label("at step").fill("150")
        page.keyboard.press("Enter")
        expect(panel.locator("output")).to_have_text("step 150")
        expect(page).to_have_url(re.compile("[?&]step=150"))
        assert_accessible(page, "#media")
        page.set_viewport_size({"width": 360, "height": 700})
        width = panel.bounding_box()
        assert width is not None
        assert width["x"] + width["width"] <= 360


def test_the_image_of_a_step_is_three_clicks_from_the_table(page_of_job: tuple[Visit, str]) -> None:
    """U4: it was six disclosures deep, without a caption."""
    tab, _ = page_of_job
    with tab.lent():
        page = tab.go("/jobs")
        page.get_by_role("link", name="with-media").click()
        page.get_by_role("tab", name="Media").click()
        page.get_by_label("at step").click()
        page.keyboard.type("150")
        page.keyboard.press("Enter")
        panel = page.get_by_role("region", name="größe <b>")
        expect(panel.locator("output")).to_have_text("step 150")
        expect(panel.locator("img").first).to_be_in_viewport()
        expect(panel.locator("figcaption").first).to_have_text(f"{HOSTILE} 150 0")


def test_an_address_names_the_step_that_is_shown(page_of_job: tuple[Visit, str]) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.go(f"{address}&step=20")
        panel = tab.page.get_by_role("region", name="größe <b>")
        expect(panel.locator("figcaption").first).to_have_text(f"{HOSTILE} 20 0")


def test_media_stand_next_to_the_curves(page_of_job: tuple[Visit, str]) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.page.set_viewport_size({"width": 1440, "height": 900})
        tab.go(address.replace("media", "charts"))
        chart = tab.page.locator(".chart:visible").first.bounding_box()
        panel = tab.page.get_by_role("region", name="größe <b>").bounding_box()
        assert chart is not None
        assert panel is not None
        assert panel["x"] >= chart["x"] + chart["width"]
        assert panel["y"] < 400


def test_pages_videos_and_objects_are_downloaded_and_never_opened(page_of_job: tuple[Visit, str]) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.go(address)
        panel = tab.page.get_by_role("region", name="pages")
        panel.scroll_into_view_if_needed()
        expect(panel.locator("figcaption")).to_have_text(["html", "video", "object3d"])
        assert panel.locator("figure :is(img, iframe, script, video)").count() == 0
        with tab.page.expect_download() as download:
            panel.get_by_role("link", name="Download").first.click()
        assert download.value.suggested_filename == "page.html"
        headers = panel.get_by_role("link").first.evaluate(
            "link => fetch(link.href).then(response => Object.fromEntries(response.headers))"
        )
        assert headers["content-disposition"].startswith("attachment;")
        assert headers["x-content-type-options"] == "nosniff"


def test_a_job_without_media_states_it(page_of_job: tuple[Visit, str], world: World) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.go(address)
        expect(tab.page.get_by_text("No images or other media have been reported.")).to_be_hidden()
        tab.go(f"/jobs/{world.submit(name='without-media')}?tab=media")
        expect(tab.page.get_by_text("No images or other media have been reported.")).to_be_visible()


def test_a_deleted_file_has_no_download(page_of_job: tuple[Visit, str]) -> None:
    tab, address = page_of_job
    with tab.lent():
        tab.go(address)
        panel = tab.page.get_by_role("region", name="größe <b>")
        expect(panel.get_by_role("link", name="Download")).to_have_count(2)
        tab.page.route("**/artifacts/**", lambda route: route.fulfill(status=404, body="{}"))
        panel.get_by_role("slider").press("ArrowLeft")
        expect(panel.get_by_text("The file was deleted.")).to_have_count(2)
        expect(panel.get_by_role("link", name="Download")).to_have_count(0)
        tab.ignore_errors("404")


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_files_of_media_move_nothing(page_of_job: tuple[Visit, str], width: int) -> None:
    """A panel grew when it had read its files, and moved the panels and the artifacts below it."""
    tab, address = page_of_job
    with open_tab(tab.page.context, tab.url) as visit:
        visit.page.add_init_script(MEASURE_SHIFTS)
        visit.page.set_viewport_size({"width": width, "height": 900})
        page = visit.go(address)
        expect(page.get_by_role("region", name="größe <b>").locator("img").first).to_be_visible()
        expect(page.locator("#artifacts-list > li").first).to_be_attached()
        assert page.evaluate("window.layoutShift") < 0.02
