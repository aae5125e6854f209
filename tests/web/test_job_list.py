"""What the table of jobs shows by itself, and that neither the view nor a selection is lost or acted on unseen."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from service.metrics.summaries import back_fill
from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit, open_signed_in_tab, open_tab_in_new_profile
from tests.support.live_world import served
from tests.support.world import SPEC, World

pytestmark = [pytest.mark.web]

CAUSE = "RuntimeError: label 12 is out of range for 10 classes"

IS_VISIBLE = """(element, length) => {
  const range = new Range();
  range.setStart(element.firstChild, 0);
  range.setEnd(element.firstChild, length);
  const box = element.closest("td").getBoundingClientRect();
  const clamped = element.getBoundingClientRect();
  const [bottom, right] = [Math.min(box.bottom, clamped.bottom) + 1, Math.min(box.right, innerWidth)];
  return [...range.getClientRects()].every((one) => one.bottom <= bottom && one.right <= right);
}"""
"""Whether so many of the first characters of an element are in its box and in the window."""


def fill(world: World) -> None:
    """Add four runs of two seeds with an accuracy, of which the last failed, and below them a sweep of two."""
    body = {"name": "rates", "spec": {**SPEC, "name": "rates"}, "grid": {"optimizer.lr": [0.1, 0.2]}}
    assert world.client.post("/v1/sweeps", json=body).status_code == 201
    for number in range(4):
        world.clock.advance(1)
        job = world.submit(name=f"run-{number}", seed=number % 2)
        worker = world.start(job)
        progress = {"step": 7, "total_steps": 20, "seconds_per_step": 1.0, "phase": "training"}
        points = [("eval/accuracy", 1, number / 10), ("eval/loss", 1, 1.0 - number / 10)]
        worker.metrics(points, progress=progress if number == 3 else None)
        if number == 3:
            name, _, message = CAUSE.partition(": ")
            worker.end("error", failure={"rank": 0, "type": name, "message": f"{message}\nmore", "final": True})
        else:
            worker.end("completed")
        world.reconciler.run_once()
    after: int | None = 0
    while after is not None:
        after = back_fill(world.database, after)


@pytest.fixture(scope="module")
def site(world: World) -> Iterator[tuple[World, str]]:
    """A service with six jobs, and its URL."""
    fill(world)
    with served(world) as url:
        yield world, url


@pytest.fixture(scope="module")
def tab(browser: Browser, site: tuple[World, str]) -> Iterator[Visit]:
    world, url = site
    with open_signed_in_tab(browser, url, world.token, size=(1400, 800)) as visit:
        yield visit


@pytest.fixture
def visit(tab: Visit) -> Iterator[Visit]:
    with tab.lent():
        yield tab


def names(page: Page) -> list[str]:
    return page.locator("tr.job .name > a").all_text_contents()


def row(page: Page, name: str) -> Any:
    return page.locator("tr.job").filter(has=page.get_by_role("link", name=name, exact=True))


def select(page: Page, *jobs: str) -> None:
    for name in jobs:
        page.get_by_role("checkbox", name=f"Select {name}").check()


def heads(page: Page) -> list[str | None]:
    return [head.get_attribute("data-column") for head in page.locator("thead th[data-column]").all()]


class TestColumns:
    def test_without_chosen_ones_the_metric_of_the_evaluations_is_shown(self, visit: Visit) -> None:
        page = visit.go("/jobs?search=run-")
        assert "eval/accuracy" in heads(page)
        expect(row(page, "run-2").locator("td.value")).to_have_text("0.2")
        expect(page).to_have_url(visit.url + "/jobs?search=run-")
        page.get_by_label("Search names").fill("rates")
        expect(page.locator("tr.job")).to_have_count(2)
        assert "eval/accuracy" not in heads(page)

    def test_first_click_on_a_metric_has_the_best_value_first(self, visit: Visit) -> None:
        page = visit.go("/jobs?search=run-&columns=name&columns=eval/accuracy&columns=min(eval/loss)&columns=seed")
        best_first = ["run-3", "run-2", "run-1", "run-0"]
        for column in ("eval/accuracy", "min(eval/loss)"):
            head = page.get_by_role("button", name=column, exact=True)
            for expected in (best_first, best_first[::-1]):
                head.click()
                expect(page.locator("tr.job .name > a")).to_have_text(expected)
        page.get_by_role("button", name="seed", exact=True).click()
        expect(page.locator("th[data-column=seed]")).to_have_attribute("aria-sort", "ascending")

    def test_added_ones_are_after_the_name_and_in_sight(self, visit: Visit) -> None:
        page = visit.go("/jobs")
        page.get_by_role("button", name="Columns").click()
        page.get_by_label("Find a column").fill("eval/loss")
        page.get_by_role("group", name="eval/loss").get_by_label("best", exact=True).check()
        page.get_by_role("button", name="Show these columns").click()
        assert heads(page)[:3] == ["status", "name", "best(eval/loss)"]
        title = page.get_by_role("button", name="best(eval/loss)", exact=True)
        expect(title).to_be_in_viewport()
        assert title.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "the title is cut"

    def test_rows_of_groups_say_what_their_numbers_are(self, visit: Visit) -> None:
        page = visit.go("/jobs?search=run-&group=seed&columns=name&columns=eval/accuracy&columns=gpus")
        expect(page.locator("th[data-column='eval/accuracy'] .statistic")).to_have_text("mean ± SD")
        expect(page.locator("th[data-column=gpus] .statistic")).to_be_hidden()
        cell = page.locator("tr.group").first.locator("td.value")
        expect(cell).to_have_text("0.2 ± 0.14")
        title = "0.2 ±\N{NO-BREAK SPACE}0.14142136: mean ± sample standard deviation of 2 jobs"
        expect(cell).to_have_attribute("title", title)

    def test_the_deviation_of_a_narrow_column_is_in_a_second_line(self, visit: Visit) -> None:
        wide = "&columns=status&width=status:900&columns=name&width=name:900"
        page = visit.go(f"/jobs?search=run-&group=seed{wide}&columns=eval/accuracy&width=eval/accuracy:80")
        group = page.locator("tr.group").first
        cell = group.locator("td.value")
        expect(cell).to_have_text("0.2 ± 0.14")
        assert cell.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth"), "it is cut"
        assert group.evaluate("(row) => row.offsetHeight") == 44, "rows have equal height"

    def test_a_name_and_its_tags_can_be_read_whole(self, visit: Visit, site: tuple[World, str]) -> None:
        world, _ = site
        (job,) = world.client.get("/v1/jobs?name=run-2").json()["data"]
        tags = {"baseline": "", "stage": "production", "third": "", "fourth": ""}
        world.client.patch(f"/v1/jobs/{job['id']}", json={"tags": tags})
        page = visit.go("/jobs?columns=name&columns=owner&search=run-2")
        title = "run-2\nTags: baseline, stage=production, third, fourth"
        expect(row(page, "run-2").locator("td.name")).to_have_attribute("title", title)
        expect(row(page, "run-2").locator("td.owner")).to_have_attribute("title", "admin")
        world.client.patch(f"/v1/jobs/{job['id']}", json={"tags": dict.fromkeys(tags)})


class TestQuery:
    def test_the_former_rows_stay_dimmed_below_a_wrong_query(self, visit: Visit) -> None:
        page = visit.go("/jobs?where=seed = 1")
        box, table = page.get_by_role("combobox", name="Filter by a query"), page.locator("#table-frame")
        former = re.compile("former")
        box.fill("seed ==")
        expect(table).to_have_class(former)
        expect(page.get_by_role("status").filter(has_text="Enter applies the query")).to_be_visible()
        box.press("Enter")
        expect(page.get_by_role("status").filter(has_text="these are the jobs of the former query")).to_be_visible()
        expect(page.locator("tr.job .name > a")).to_have_text(["run-3", "run-1"])
        expect(table).to_have_class(former)
        page.reload()
        expect(page.get_by_role("heading", name="No jobs are shown")).to_be_visible()
        expect(page.get_by_role("heading", name="No matching jobs")).to_be_hidden()
        box.fill("seed = 1")
        box.press("Enter")
        expect(page.locator("tr.job .name > a")).to_have_text(["run-3", "run-1"])
        expect(table).not_to_have_class(former)
        visit.ignore_errors("422")

    def test_navigation_and_back_keep_the_view(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&columns=seed")
        box = page.get_by_role("combobox", name="Filter by a query")
        box.fill("seed < 2")
        box.press("Enter")
        page.get_by_role("button", name="Name", exact=True).click()
        page.get_by_label("Search names").fill("run-")
        page.get_by_text("Succeeded", exact=True).click()
        expected = ["run-0", "run-1", "run-2"]
        expect(page.locator("tr.job .name > a")).to_have_text(expected)
        address = page.url

        def assert_same_view() -> None:
            expect(page).to_have_url(address)
            expect(page.locator("tr.job .name > a")).to_have_text(expected)
            expect(box).to_have_value("seed < 2")
            assert heads(page) == ["name", "seed"]

        page.get_by_role("link", name="run-1", exact=True).click()
        page.wait_for_url(re.compile("/jobs/job_"))
        page.go_back()
        assert_same_view()
        for link in ("Models", "Jobs"):
            page.get_by_role("navigation", name="Main").get_by_role("link", name=link, exact=True).click()
        assert_same_view()
        page.get_by_role("link", name="Reset the view").click()
        expect(page).to_have_url(visit.url + "/jobs")
        page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs", exact=True).click()
        expect(page.locator("tr.job")).to_have_count(6)

    def test_all_jobs_are_shown_with_the_columns(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&where=seed+%3D+7&search=run")
        page.get_by_role("link", name="Show all jobs").click()
        expect(page).to_have_url(visit.url + "/jobs?columns=name")


class TestSelection:
    def test_archiving_is_undone_and_keeps_the_view(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&sort=name&search=run-")
        select(page, "run-0", "run-1")
        bar = page.get_by_role("region", name="Selected jobs", exact=True)
        bar.get_by_role("button", name="Archive").click()
        expect(page.locator("tr.job .name > a")).to_have_text(["run-2", "run-3"])
        expect(bar).to_be_hidden()
        expect(page).to_have_url(visit.url + "/jobs?search=run-&sort=name&columns=name")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("tr.job .name > a")).to_have_text([f"run-{number}" for number in range(4)])
        expect(page.locator("#toast")).to_contain_text("2 jobs: taken out of the archive.")
        expect(page).to_have_url(visit.url + "/jobs?search=run-&sort=name&columns=name")

    def test_jobs_that_are_not_shown_are_counted_and_left_alone(self, visit: Visit, site: tuple[World, str]) -> None:
        world, _ = site
        page = visit.go("/jobs?search=run-")
        select(page, "run-0", "run-1")
        page.get_by_label("Search names").fill("run-1")
        expect(page.locator("tr.job")).to_have_count(1)
        bar = page.get_by_role("region", name="Selected jobs", exact=True)
        expect(bar).to_contain_text("1 selected")
        expect(bar).to_contain_text("1 more not in this list, left as it is")
        bar.get_by_role("button", name="Tag").click()
        boxes = [page.get_by_label(label).bounding_box() for label in ("Add", "Remove")]
        assert [box and (box["x"], box["width"]) for box in boxes[1:]] == [(boxes[0]["x"], boxes[0]["width"])]
        page.get_by_label("Add").fill("seen")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(row(page, "run-1").locator(".tag")).to_have_text("seen")
        tagged = world.client.get("/v1/jobs", params={"where": "tag = seen"}).json()["data"]
        assert [job["name"] for job in tagged] == ["run-1"]
        page.get_by_label("Search names").fill("nothing")
        expect(bar).to_contain_text("2 more not in this list, left as they are")
        expect(bar.get_by_role("button", name="Tag")).to_be_hidden()
        bar.get_by_role("button", name="Clear").click()
        expect(bar).to_be_hidden()

    def test_a_long_loss_is_not_cut_off_next_to_the_charts(self, visit: Visit) -> None:
        page = visit.go("/jobs")
        select(page, "run-0")
        expect(page.get_by_role("region", name="Charts of the selected jobs")).to_be_visible()
        loss = row(page, "run-0").locator("td.loss")
        loss.locator(".value").evaluate("(value) => { value.textContent = '6.763e30'; }")
        assert loss.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")

    def test_columns_that_do_not_fit_next_to_the_charts_are_not_cut(self, visit: Visit) -> None:
        page = visit.go("/jobs?search=run-")
        box = page.get_by_role("checkbox", name="Select run-0")
        box.focus()
        box.press("Space")
        gpus = page.locator("th[data-column=gpus]")
        expect(page.locator("th[data-column='eval/accuracy']")).to_be_visible()
        expect(gpus).to_be_hidden()
        expect(box).to_be_focused()
        assert page.locator("#table-frame").evaluate("(frame) => frame.scrollWidth <= frame.clientWidth")
        assert row(page, "run-0").evaluate("(row) => row.offsetWidth === row.closest('#table-frame').clientWidth")
        page.get_by_role("button", name="Charts").click()
        expect(gpus).to_be_in_viewport()
        page.get_by_role("button", name="Charts").click()
        gpus.wait_for(state="hidden")
        visit.go("/jobs?search=run-&columns=name&columns=eval/accuracy&columns=gpus&width=name:900")
        select(page, "run-0")
        expect(gpus).to_be_visible()

    def test_arrow_keys_lead_from_box_to_box(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&sort=name&search=run-")
        page.get_by_role("checkbox", name="Select run-0").focus()
        for key in ("Space", "ArrowDown", "ArrowDown", "Shift+Space", "ArrowUp"):
            page.keyboard.press(key)
        expect(page.get_by_role("checkbox", name="Select run-1")).to_be_focused()
        expect(page.locator("tr.job:has(:checked) .name > a")).to_have_text(["run-0", "run-1", "run-2"])

    def test_all_jobs_and_ranges_are_selected(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&sort=name")
        every = page.get_by_role("checkbox", name="Select all jobs of the table")
        bar = page.get_by_role("region", name="Selected jobs", exact=True)
        every.check()
        expect(bar).to_contain_text("6 selected")
        expect(page.locator("tr.job:has(:checked)")).to_have_count(6)
        page.get_by_role("checkbox", name="Select run-0").uncheck()
        assert every.evaluate("box => [box.checked, box.indeterminate]") == [False, True]
        page.get_by_role("checkbox", name="Select run-2").click(modifiers=["Shift"])
        expect(bar).to_contain_text("3 selected")
        page.get_by_role("checkbox", name="Select run-0").click(modifiers=["Shift"])
        expect(bar).to_contain_text("6 selected")
        assert not page.evaluate("getSelection().toString()")
        every.uncheck()
        expect(bar).to_be_hidden()

    def test_a_range_over_groups_leaves_out_jobs_after_its_end(self, visit: Visit) -> None:
        page = visit.go("/jobs?columns=name&sort=name&search=run-&group=seed")
        select(page, "run-0")
        page.get_by_role("checkbox", name="Select run-1").click(modifiers=["Shift"])
        expect(page.locator("tr.job:has(:checked) .name > a")).to_have_text(["run-0", "run-2", "run-1"])
        page.get_by_role("checkbox", name="Select all jobs of the table").check()
        expect(page.get_by_role("region", name="Selected jobs", exact=True)).to_contain_text("4 selected")


class TestRows:
    def test_failure_begins_with_its_cause(self, visit: Visit) -> None:
        message = row(visit.go("/jobs"), "run-3").locator(".progress .message")
        expect(message).to_have_text(re.compile(f"^{re.escape(CAUSE)}"))
        expect(message).to_have_attribute("title", re.compile("more\nStep 7 / 20$"))

    @pytest.mark.parametrize("width", [1440, 1024, 390])
    def test_cause_of_a_failure_is_not_cut(self, visit: Visit, width: int) -> None:
        visit.page.set_viewport_size({"width": width, "height": 800})
        message = row(visit.go("/jobs"), "run-3").locator(".progress .message")
        expect(message).to_have_text(re.compile(f"^{re.escape(CAUSE)}"))
        assert message.evaluate(IS_VISIBLE, len(CAUSE))

    def test_text_that_describes_a_job_opens_it(self, visit: Visit) -> None:
        page = visit.go("/jobs")
        row(page, "run-3").locator(".progress .message").click()
        expect(page.get_by_role("heading", name="run-3")).to_be_visible()
        page.go_back()
        message = row(page, "run-3").locator(".progress .message")
        box = message.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 2, box["y"] + 8)
        page.mouse.down()
        page.mouse.move(box["x"] + 90, box["y"] + 8)
        page.mouse.up()
        assert page.evaluate("getSelection().toString()")
        expect(page).to_have_url(visit.url + "/jobs")

    def test_members_lead_to_their_sweep(self, visit: Visit) -> None:
        page = visit.go("/jobs?search=rates")
        member = page.locator("tr.job").first
        expect(member.locator(".message small")).to_have_text("lr 0.2")
        member.get_by_role("link", name="sweep").click()
        expect(page.get_by_role("heading", name="rates")).to_be_visible()
        visit.go("/jobs").get_by_role("link", name="Sweeps", exact=True).click()
        group = page.locator("tr.group")
        expect(group).to_contain_text("sweep rates · 2 jobs")
        expect(group.get_by_role("link", name="compare")).to_have_attribute("href", re.compile(r"/compare\?sweep=swp_"))
        assert_accessible(page)


def test_user_named_like_the_role_is_named_once(visit: Visit) -> None:
    expect(visit.go("/jobs").locator(".user")).to_have_text("admin")


def test_column_of_the_evaluation_appears_with_its_first_value(visit: Visit, site: tuple[World, str]) -> None:
    world, _ = site
    job = world.submit(name="late")
    page = visit.go("/jobs?search=late")
    assert "eval/accuracy" not in heads(page)
    worker = world.start(job)
    for step, value in enumerate((0.5, 0.625), 1):
        worker.metrics([("eval/accuracy", step, value)])
        expect(row(page, "late").locator("td.value")).to_have_text(str(value))
    world.client.post(f"/v1/jobs/{job}/cancel")


def test_jobs_that_an_action_leaves_out_are_counted(visit: Visit, site: tuple[World, str]) -> None:
    world, _ = site
    waiting, ended = world.submit(name="bulk-waiting"), world.submit(name="bulk-ended")
    world.client.post(f"/v1/jobs/{ended}/cancel")
    world.reconciler.run_once()
    page = visit.go("/jobs?columns=name&search=bulk-")
    page.get_by_role("checkbox", name="Select all").check()
    bar = page.get_by_role("region", name="Selected jobs", exact=True)
    bar.get_by_role("button", name="Delete").click()
    expect(page.locator("#confirm")).to_contain_text("Delete bulk-ended?")
    expect(page.locator("#confirm")).to_contain_text("1 of the selected jobs: left as it is.")
    page.keyboard.press("Escape")
    bar.get_by_role("button", name="Archive").press("Enter")
    expect(page.get_by_text("bulk-ended: archived. 1 of the selected jobs: left as it is.")).to_be_visible()
    expect(page.get_by_role("link", name="bulk-ended")).to_have_count(0)
    expect(bar.get_by_role("button", name="Clear")).to_be_focused()
    world.client.post(f"/v1/jobs/{waiting}/cancel")


def test_the_long_title_of_a_member_leaves_the_actions_at_the_right(visit: Visit) -> None:
    page = visit.go("/jobs?columns=name&search=rates&where=exists%20sweep")
    page.locator("tr.job .name > a").first.click()
    expect(page.locator("#member + span")).to_be_attached()
    page.evaluate(
        "document.querySelector('#member + span').textContent = 'optimizer.lr=0.03 batch.size=64 seed=1 '.repeat(3)"
    )
    title, fork = page.locator("h1").bounding_box(), page.get_by_role("link", name="Fork").bounding_box()
    assert title is not None
    assert fork is not None
    assert fork["x"] > title["x"] + 900
    assert page.evaluate("document.scrollingElement.scrollWidth") == 1400


def test_on_a_phone_nothing_is_cut_or_covered(browser: Browser, site: tuple[World, str]) -> None:
    world, url = site
    with open_tab_in_new_profile(browser, url, size=(360, 640)) as visit:
        page = visit.sign_in(world.token)
        every = page.get_by_label("Select all")
        every.check()
        expect(page.get_by_text(re.compile(r"^[6-9] selected$"))).to_be_visible()
        every.uncheck()
        page.get_by_role("button", name="Name", exact=True).click()
        expect(page).to_have_url(re.compile(r"[?&]sort=name"))
        expect(page.locator('th[data-column="name"]')).to_have_attribute("aria-sort", "ascending")
        select(page, "run-0")
        page.get_by_role("button", name="Charts").click()
        bar = page.get_by_role("region", name="Selected jobs", exact=True)
        expect(bar).to_be_visible()
        assert page.evaluate("document.scrollingElement.scrollWidth") == 360
        page.evaluate("scrollTo(0, document.scrollingElement.scrollHeight)")
        last, covered = page.locator("tr.job").last.bounding_box(), bar.bounding_box()
        assert last is not None
        assert covered is not None
        assert last["y"] + last["height"] <= covered["y"]
        assert_accessible(page)
        sweep = visit.go("/jobs?search=rates").locator("tr.job .message").first
        expect(sweep.locator("small")).not_to_be_empty()  # the changes of the members are read after the list
        sweep.locator("a").click()
        metric = page.locator("#ranking th.mono").first.bounding_box()
        assert metric is not None
        assert metric["x"] + metric["width"] <= 360 - 29, "the ranking's metric is off screen"
        visit.assert_clean()
