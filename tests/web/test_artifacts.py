"""The artifacts of a job on its page."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.web.assets import Assets
from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.support.live_service import LiveService
from tests.support.wait import wait_until
from tests.web.specs import SPEC
from trainyard.client import Client
from trainyard.contract.layout import RunLayout

pytestmark = [pytest.mark.web]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR4nGP8z8AARAwQCkgAAB0EAQE5cBiOAAAAAElFTkSuQmCC"
)
HISTOGRAMS = [
    *({"name": "weights", "step": step, "bins": [-step, 0, step], "values": [step, 1]} for step in (1, 2, 2000)),
    {"name": "weights", "step": 2, "bins": [-2, 0, 3], "values": [5, 1]},
    {"name": "weights", "step": 3, "bins": [0, 1], "values": [float("nan")]},
]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def job(client: Client) -> Any:
    """A job that was submitted; whether it runs does not matter."""
    return client.submit({**SPEC, "name": "with-artifacts"})


@pytest.fixture(scope="module", autouse=True)
def artifacts(service: LiveService, job: Any) -> None:
    run = RunLayout(service.runs_dir / job.id)
    wait_until(run.spec.exists, what="the run's folder")
    folder = run.artifacts
    files = {
        **{f"plots/grid/{step}.png": PNG for step in (2, 10, 100)},
        "comm_check.json": json.dumps({"world_size": 2, "operations": [{"group": "world", "gb": 1.5}]}).encode(),
        "notes/read me.txt": f"first {HOSTILE}\n".encode() + b"x" * 400_000,
        "notes/page.html": HOSTILE.encode(),
        "notes/not_an_image.png": b"<svg onload=alert(1)>",
        "profile/rank-0.json.gz": b"\x1f\x8b",
        "wandb/rows.csv": b'a,b\n1,"two, ""quoted"""\n' + b"3,4\n" * 500,
        **{f"images/{name}.png": PNG for name in ("a", "b", "c")},
        "images/b.txt": b"between",
        "tensorboard/histograms/weights.jsonl": "\n".join(map(json.dumps, HISTOGRAMS)).encode(),
        **{f"many/file-{n}.bin": b"1" for n in range(230)},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def opened(page: Any, *names: str) -> Any:
    """Open rows below one another, and return the content of the last."""
    at = page.locator("#artifacts")
    for name in names:
        row = at.locator("li > details").filter(has=page.locator("> summary > span", has_text=name)).first
        row.locator("> summary").click()
        at = row.locator("> .content")
    return at


def test_artifacts_are_shown_where_they_are_opened(visit: Visit, job: Any) -> None:
    page = visit.go(f"/jobs/{job.id}")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    expect(page.locator("#log")).not_to_be_empty()
    assert not [url for url in requests if "/artifacts" in url], "nothing is read before the tab is shown"
    page.get_by_role("tab", name="Media").click()
    expect(page.locator("#artifacts-note")).to_contain_text("244 files")
    assert not [url for url in requests if "/artifacts/" in url]

    grid = opened(page, "plots/", "grid/")
    expect(grid.locator("summary > span")).to_have_text(["2.png", "10.png", "100.png"])
    grid.locator("summary", has_text="10.png").click()
    expect(grid.locator("img")).to_have_js_property("naturalWidth", 2)
    expect(grid.locator("img")).to_have_attribute("alt", "plots/grid/10.png")
    expect(grid.locator("input[type=range]")).to_have_count(0)

    checked = opened(page, "comm_check.json")
    expect(checked.locator("td")).to_have_text(["world", "1.5"])
    expect(checked.locator("pre")).to_contain_text('"world_size": 2')

    notes = opened(page, "notes/")
    notes.locator("summary", has_text="read me.txt").click()
    expect(notes.locator("pre")).to_contain_text(HOSTILE)
    expect(notes).to_contain_text("The first 256 KiB of 391 KiB")
    notes.locator("summary", has_text="not_an_image").click()
    expect(notes).to_contain_text("not a PNG, JPEG, GIF or WebP image")
    notes.locator("summary", has_text="page.html").click()
    expect(notes).to_contain_text("No preview of this type")
    assert notes.locator("img, script").count() == 0

    rows = opened(page, "wandb/", "rows.csv")
    expect(rows.locator("tbody tr")).to_have_count(200)
    expect(rows.locator("td").nth(1)).to_have_text('two, "quoted"')
    expect(opened(page, "profile/", "rank-0.json.gz")).to_contain_text("ui.perfetto.dev")

    many = opened(page, "many/")
    expect(many.locator("summary")).to_have_count(100)
    many.get_by_role("button", name="130 more").click()
    expect(many.locator("summary")).to_have_count(200)


def test_artifact_is_downloaded_and_never_opened(visit: Visit, job: Any) -> None:
    page = visit.go(f"/jobs/{job.id}?tab=media")
    notes = opened(page, "notes/")
    notes.locator("summary", has_text="page.html").click()
    with page.expect_download() as download:
        notes.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "page.html"


def test_10000_artifacts_are_read_in_pages(script_tab: Page) -> None:
    names = [f"media/images/loss_{n}_{n:020x}.png" for n in range(9_000)] + [f"d/{n}.html" for n in range(1_000)]
    tree = script_tab.evaluate(
        """async ([url, names]) => {
          const { treeOf } = await import(url);
          const started = performance.now();
          const tree = treeOf(names.map((path) => ({ path, size_bytes: 1 })));
          const images = tree.folders.get("media").folders.get("images");
          const others = tree.folders.get("d").entries.length;
          return [tree.count, images.entries.length, images.size, others, performance.now() - started];
        }""",
        [Assets().url("artifact_files.js"), names],
    )
    assert tree[:-1] == [10_000, 9_000, 9_000, 1_000]
    assert tree[-1] < 1000


@pytest.fixture
def files(module: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    return module("artifact_files.js")


def test_kinds_of_names(files: Callable[..., Any]) -> None:
    kinds = {
        "a.PNG": "image", "x.svg": "none", "x.html": "none", "a.constructor": "none", "README": "none", "a.md": "text",
        "wandb/run/histograms/w_0.jsonl": "histograms", "histograms/a/b.jsonl": "histograms", "a.jsonl": "text",
        "profile/rank-0.json.gz": "trace", "t.table.json": "json", "x.tsv": "table", "a.jpeg": "image",
    }  # fmt: skip
    assert {path: files("kindOf", path) for path in kinds} == kinds
    assert files("rowsOf", 'a,b\r\n"x\ny",2', "t.csv", 9) == [["a", "b"], ["x\ny", "2"]]


def test_images_are_browsed_with_buttons_and_arrow_keys(visit: Visit, job: Any) -> None:
    page = visit.go(f"/jobs/{job.id}?tab=media")
    first = opened(page, "images/", "a.png")
    expect(first.get_by_role("button", name="Previous image")).to_be_hidden()
    first.get_by_role("button", name="Next image").click()
    shown = page.locator("#artifacts .image > details[open] img")
    expect(shown).to_have_attribute("alt", "images/b.png")
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_attribute("alt", "images/c.png")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(shown).to_have_attribute("alt", "images/b.png")
    assert_accessible(page, "#artifacts")


def test_histograms_are_drawn_by_step(visit: Visit, job: Any) -> None:
    page = visit.go(f"/jobs/{job.id}?tab=media")
    shown = opened(page, "tensorboard/", "histograms/", "weights.jsonl")
    expect(
        shown.get_by_text(re.compile("^Step 2.000: 2001 values from -2000 to 2000, at most 2000 in a bin$"))
    ).to_be_visible()
    expect(shown.locator("rect")).to_have_count(2)
    slider = shown.get_by_label("Step of the histogram")
    slider.press("ArrowLeft")
    expect(shown.get_by_text("Step 2: 6 values from -2 to 3, at most 5 in a bin")).to_be_visible()
    expect(slider).to_have_attribute("max", "2")
    assert_accessible(page, "#artifacts")
