"""Parts of a job's page: lineage, code, charts of the system, and other resources."""

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from service.web.assets import Assets
from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

Call = Callable[..., Any]


def archive(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> list[int]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return list(buffer.getvalue())


READ = """async ([url, before, after]) => {
  const { differenceOf, filesOf } = await import(url);
  const [one, other] = [before, after].map((bytes) => filesOf(new Uint8Array(bytes)));
  return [[...one.keys()], differenceOf(one, other, 40)];
}"""


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_codes_differ_by_files_and_lines(script_tab: Page, form: int) -> None:
    deep = "folder/" * 12 + "a_rather_long_name_of_a_module.py"
    body = b"".join(b"line %d\n" % number for number in range(20))
    before = {"a.py": body, deep: b"x\n", "same.py": b"1\n", "gone.py": b"old\n", "data.bin": b"\0\1"}
    before[".trainyard/uncommitted.diff"] = b"-line 9\n"
    after = {"a.py": body.replace(b"line 9", b"<b>nine</b>"), deep: b"x\n", "same.py": b"1\n", "data.bin": b"\0\2"}
    names, lines = script_tab.evaluate(
        READ, [Assets().url("code_archive.js"), archive(before, form), archive(after, form)]
    )
    assert names == list(before)
    assert lines == [
        "--- a.py", "+++ a.py", "@@ line 7",
        " line 6", " line 7", " line 8", "-line 9", "+<b>nine</b>", " line 10", " line 11", " line 12",
        "--- data.bin", "+++ data.bin", "@@ binary content differs",
        "--- gone.py", "+++ (absent)", "@@ line 1", "-old",
    ]  # fmt: skip


def test_very_different_files_are_compared_in_bounded_time(module: Callable[[str], Call]) -> None:
    before, after = ([f"{side} {number}" for number in range(2900)] for side in ("a", "b"))
    lines = module("code_archive.js")("hunks", before, after)
    assert len(lines) == 5801
    assert module("code_archive.js")("hunks", ["x"] * 3001, []) == ["@@ 3001 lines became 0"]
    assert module("code_archive.js")("hunks", [], ["new"]) == ["@@ line 1", "+new"]
    assert module("code_archive.js")("hunks", ["a", "b", "c"], ["b", "c", "d"]) == ["@@ line 1", "-a", " b", " c", "+d"]


def test_damaged_archive_has_the_files_before_the_damage(script_tab: Page) -> None:
    bytes_ = archive({"a.py": b"1\n", "b.py": b"2\n"})
    damaged = [*bytes_[:1024], *([120] * 700)]
    names, _ = script_tab.evaluate(READ, [Assets().url("code_archive.js"), damaged, []])
    assert names == ["a.py"]


def test_metrics_of_the_system_share_charts_by_quantity(module: Callable[[str], Call]) -> None:
    keys = [
        "train/loss", "system/node-0/cpu_percent", "system/node-1/cpu_percent", "system/rank-0/cpu_percent",
        "system/node-0/gpu-1/memory_used_bytes", "system/node-0/memory_used_bytes", "system/node-0/memory_total_bytes",
        "system/node-0/idle_gpus", "system/mine",
    ]  # fmt: skip
    charts = module("chart_list.js")("chartsOf", {"task": "script"}, keys)
    assert [(chart["title"], chart["section"], len(chart["keys"])) for chart in charts] == [
        ("Loss", "Overview", 2), ("system/mine", "Metrics", 1), ("GPU memory", "System", 1),
        ("CPU of the nodes", "System", 2), ("CPU of the ranks", "System", 1), ("Memory of the nodes", "System", 1),
    ]  # fmt: skip
    assert [chart["title"] for chart in charts if chart["fromZero"]] == ["GPU memory", "Memory of the nodes"]
    names = [module("system_charts.js")("systemName", key) for key in (keys[1], keys[3], keys[4])]
    assert names == ["node 0", "rank 0", "node 0, GPU 1"]


def test_readings_are_drawn_at_the_steps_of_the_training(module: Callable[[str], Call]) -> None:
    times = [f"2026-01-01T00:00:{second:02}Z" for second in range(0, 60, 10)]
    system = {"steps": [0, 1, 2, 3, 4, 5], "values": [1] * 6, "times": times}
    training = {"steps": [100, 300, 400], "values": [1] * 3, "times": [times[1], times[3], times[4]]}
    at = module("system_charts.js")("atSteps", system, training)
    assert at["steps"] == [100, 100, 200, 300, 400, 400]
    assert module("system_charts.js")("atSteps", system, None)["steps"] == system["steps"]


EVENTS = """async (url) => {
  const { EventList } = await import(url);
  const root = document.createElement("ol");
  const list = new EventList(root);
  const event = (message, minute, type = "status", status = "pending") =>
    ({ type, message, level: "info", data: { status, reason: null }, created_at: `2026-01-01T00:0${minute}:00Z` });
  const waiting = (used) => `Waiting for 1 of 4 local slots (${used} in use). Ahead: job_${used} (running).`;
  list.add(event(waiting(4), 3));
  list.add(event(waiting(3), 4));
  list.add(event("Running.", 5, "status", "running"));
  list.add(event("saved at step 10", 6, "checkpoint_saved"));
  list.add(event("saved at step 20", 7, "checkpoint_saved"));
  list.add(event(waiting(2), 2), { isOlder: true });
  list.add(event("Waiting for free slots.", 1), { isOlder: true });
  const minutes = (item) => [...item.querySelectorAll("time")].map((one) => one.dateTime.slice(14, 16));
  return [...root.children].map((item) => [item.querySelector("span").firstChild.textContent, ...minutes(item)]);
}"""


def test_status_messages_that_differ_in_numbers_are_one_event(script_tab: Page) -> None:
    assert script_tab.evaluate(EVENTS, Assets().url("event_list.js")) == [
        ["saved at step 20", "07"],
        ["saved at step 10", "06"],
        ["Running.", "05"],
        ["Waiting for 1 of 4 local slots (3 in use). Ahead: job_3 (running).", "04", "02"],
        ["Waiting for free slots.", "01"],
    ]


def test_job_has_its_lineage_and_no_code(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "alone"})
    page = visit.go(f"/jobs/{job.id}")
    page.get_by_role("tab", name="Spec & code").click()
    expect(page.locator("#script-text")).to_be_visible()
    expect(page.locator("#code")).to_be_hidden()
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#lineage-list")).to_contain_text("this job")
    expect(page.locator("#lineage-list")).to_contain_text("parity")


@contextmanager
def delayed(page: Page, address: str) -> Iterator[None]:
    """Send the requests to addresses of a pattern only at the end of the block."""
    requests: list[Route] = []
    page.route(address, lambda route: requests.append(route) if waits else route.continue_())
    waits = True
    yield
    waits = False
    for request in requests:
        request.continue_()
    page.wait_for_load_state()
    page.unroute(address)


HEADINGS = """() => [...document.querySelectorAll("main h2")].filter((one) => one.checkVisibility())
  .map((one) => [one.textContent, Math.round(one.getBoundingClientRect().top + scrollY)])"""


@pytest.mark.parametrize(
    ("tab", "headings"),
    [
        ("overview", {"Log"}),
        ("spec", {"Spec resolved, with defaults", "Batch script as submitted"}),
        ("history", {"Attempts", "Checkpoints", "Lineage origin, forks, data and models", "Events"}),
    ],
)
def test_no_section_moves_while_the_page_of_a_job_loads(
    visit: Visit, client: Client, tab: str, headings: set[str]
) -> None:
    """A click on a section that moves under the pointer does nothing."""
    job = client.submit({**SPEC, "name": "still"})
    page = visit.page
    with delayed(page, "**/v1/**"):
        visit.go(f"/jobs/{job.id}?tab={tab}")
        first = page.evaluate(HEADINGS)
    assert headings <= {heading for heading, _ in first}
    expect(page.locator("#attempts")).to_contain_text("Attempt 1")
    expect(page.locator("#events li")).not_to_have_count(0)
    assert page.evaluate(HEADINGS) == first


@pytest.mark.parametrize(
    ("path", "section", "content"),
    [
        ("/jobs/{job}?tab=history", "#lineage", "this job"),
        ("/jobs/{job}?tab=spec", "#script", "worker.launcher"),
        ("/jobs", "#views", "Failed in the last day"),
    ],
)
def test_a_section_opened_before_the_scripts_run_is_filled(
    visit: Visit, client: Client, path: str, section: str, content: str
) -> None:
    job = client.submit({**SPEC, "name": "early"})
    page = visit.page
    with delayed(page, "**/page.js"):
        page.goto(visit.url + path.format(job=job.id), wait_until="commit")
        if "tab=" not in path:
            page.locator(section).evaluate("(one) => { one.open = true; }")
    expect(page.locator(section)).to_contain_text(content)


def test_job_goes_on_with_other_resources(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "moves", "resources": {"time_limit_minutes": 5}})
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    page = visit.go(f"/jobs/{job.id}")
    change = page.get_by_role("button", name="Change resources")
    page.locator("#more > summary").click()
    change.click()
    expect(page.get_by_label("Time limit in minutes")).to_have_value("5")
    expect(page.get_by_label("Partition")).to_be_hidden()  # jobs run on this machine
    page.get_by_label("Time limit in minutes").fill("30")
    page.get_by_role("button", name="Run with these").click()
    expect(page.locator("[data-action='resources']")).to_have_attribute("hidden", "")
    assert client.job(job.id).spec["resources"]["time_limit_minutes"] == 30
    client.cancel(job.id)


def test_resources_of_a_cluster_are_proposed_and_sent(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "stays"})
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    page = visit.go(f"/jobs/{job.id}")
    partitions = [{"name": "gpu", "state": "down"}, {"name": "long", "state": "up"}]
    page.route("**/v1/cluster", lambda route: route.fulfill(json={"backend": "slurm", "partitions": partitions}))
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Change resources").click()
    expect(page.locator("#partitions option")).to_have_text(["gpu (down)", "long"])
    page.get_by_label("Partition").fill("long")
    page.get_by_label("Memory of each rank in GiB").fill("8")
    with page.expect_request("**/retry") as sent:
        page.get_by_role("button", name="Run with these").click()
    assert sent.value.post_data_json == {"resources": {"partition": "long", "memory_gb_per_gpu": 8}}
    expect(page.locator("#resources .problem")).to_contain_text("runs jobs on its own machine")
    expect(page.get_by_label("Partition")).to_have_value("long")
    page.get_by_role("button", name="Keep as it is").click()
    expect(page.locator("#resources")).to_be_hidden()
    visit.ignore_errors("422")


def test_enter_sends_a_dialog_and_an_error_keeps_its_input(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "notes"})
    client.cancel(job.id)
    page = visit.go(f"/jobs/{job.id}")
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Edit name, tags and notes").click()
    page.get_by_label("Notes, in Markdown").fill("long thoughts")
    tags = page.get_by_label("Tags", exact=True)
    tags.fill("=none")
    tags.press("Enter")
    expect(page.locator("#edit-dialog .problem")).not_to_be_empty()
    expect(page.get_by_label("Notes, in Markdown")).to_have_value("long thoughts")
    tags.fill("baseline")
    tags.press("Enter")
    expect(page.locator("#edit-dialog")).to_be_hidden()
    stored = client.job(job.id)
    assert (stored.tags, stored.notes) == ({"baseline": ""}, "long thoughts")
    visit.ignore_errors("422")


def test_the_dialog_keeps_tags_with_its_separators(visit: Visit, client: Client) -> None:
    """Commas in a tag separated it, and the first = in its name ended the name, whenever the dialog was saved."""
    job = client.submit({**SPEC, "name": "separators"})
    client.cancel(job.id)
    page = visit.go(f"/jobs/{job.id}")
    tags = {"a=b": "", "sizes": "1, 2,3", "team:vision": "c:d", "b=c": "d"}
    page.evaluate(
        """async ([url, job, tags]) => (await import(url)).call(`/v1/jobs/${job}`, {method: "PATCH", body: {tags}})""",
        [Assets().url("api.js"), job.id, tags],
    )
    page.reload()
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Edit name, tags and notes").click()
    page.get_by_label("Tags", exact=True).press("End")
    page.keyboard.type(", new")
    page.get_by_label("Tags", exact=True).press("Enter")
    expect(page.locator("#edit-dialog")).to_be_hidden()
    assert client.job(job.id).tags == {**tags, "new": ""}


def test_long_tags_are_wrapped_on_narrow_screens(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "long-tag", "metadata": {"team": "nlp"}})
    client.cancel(job.id)
    page = visit.go(f"/jobs/{job.id}")
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Edit name, tags and notes").click()
    page.get_by_label("Tags", exact=True).fill("x" * 60)
    page.get_by_label("Tags", exact=True).press("Enter")
    expect(page.locator("#tags")).to_contain_text("x" * 60)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390


def test_a_job_that_waits_links_to_its_prerequisite(visit: Visit, client: Client) -> None:
    first = client.submit({**SPEC, "name": "prepared"})
    client.pause(first.id)
    second = client.submit({**SPEC, "name": "evaluated", "after": [first.id]})
    page = visit.go(f"/jobs/{second.id}")
    summary = page.locator("#summary")
    expect(summary).to_have_text(f"Waiting for {first.id} to succeed, as after of the spec requests.")
    expect(summary.locator("code")).to_have_text("after")
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#lineage-list")).to_contain_text("after prepared success")
    page.get_by_role("tab", name="Overview").click()
    summary.get_by_role("link", name=first.id).click()
    expect(page).to_have_url(re.compile(f"/jobs/{first.id}$"))
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#lineage-list")).to_contain_text("before evaluated success queued")
    for job in (second, first):
        client.cancel(job.id)
