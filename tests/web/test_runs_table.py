"""The runs table: query with completion, columns, groups, charts of the selection, views, and the address."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from service.metrics.summaries import back_fill
from tests.support.browser import Visit, open_signed_in_tab
from tests.support.live_world import served
from tests.support.world import World

pytestmark = [pytest.mark.web]

COLUMNS = ("status", "name", "optimizer.lr", "eval/loss")


@pytest.fixture(scope="module")
def experiment(world: World) -> Iterator[tuple[World, str]]:
    """A service with six runs, two seeds of three learning rates, and its URL. The first two have counted tokens."""
    for number in range(6):
        job = world.submit(name=f"run-{number}", seed=number % 2, optimizer={"lr": 10.0 ** -(1 + number // 2)})
        points = [("eval/loss", step, float(number + 10 - step)) for step in range(10)]
        worker = world.start(job)
        tokens = [("train/tokens", step, 100.0 * step) for step in range(1, 10)] if number < 2 else []
        worker.metrics([*points, *tokens, *(("train/loss", step, 1.0) for step in range(10))])
        worker.end("completed")
        world.reconciler.run_once()
    after: int | None = 0
    while after is not None:
        after = back_fill(world.database, after)
    with served(world) as url:
        yield world, url


@pytest.fixture(scope="module")
def tab(browser: Browser, experiment: tuple[World, str]) -> Iterator[Visit]:
    world, url = experiment
    with open_signed_in_tab(browser, url, world.token) as visit:
        yield visit


@pytest.fixture
def runs(tab: Visit) -> Iterator[Visit]:
    with tab.lent():
        yield tab


def table(visit: Visit, **view: str) -> Page:
    pairs = [*view.items(), *(("columns", column) for column in COLUMNS)]
    return visit.go(f"/jobs?{urlencode(pairs)}")


def names(page: Page) -> list[str]:
    return page.locator("tr.job .name > a").all_text_contents()


def test_a_query_is_completed_applied_and_in_the_address(runs: Visit) -> None:
    page = table(runs, sort="eval/loss")
    box = page.get_by_role("combobox", name="Filter by a query")
    box.press_sequentially("optimizer.l")
    expect(page.get_by_role("listbox", name="Completions").get_by_role("option").first).to_contain_text("optimizer.lr")
    for key in ("ArrowDown", "Enter"):
        box.press(key)
    expect(box).to_have_value("optimizer.lr ")
    box.press_sequentially("< 0.05 and seed = 1")
    box.press("Enter")
    expect(page.locator("tr.job")).to_have_count(2)
    assert names(page) == ["run-3", "run-5"]
    page.reload()
    assert names(page) == ["run-3", "run-5"]
    expect(box).to_have_value("optimizer.lr < 0.05 and seed = 1")


def test_a_word_is_a_search_for_names_and_owners(runs: Visit) -> None:
    page = table(runs)
    box = page.get_by_role("combobox", name="Filter by a query")
    box.fill("run-3")
    box.press("Enter")
    expect(box).to_have_value('name ~ "run-3" or user ~ "run-3"')
    expect(page.locator("tr.job")).to_have_count(1)
    box.fill("admin")
    box.press("Enter")
    expect(page.locator("tr.job")).to_have_count(6)


def test_runs_that_diverged_are_two_clicks_away(runs: Visit) -> None:
    page = table(runs)
    box = page.get_by_role("combobox", name="Filter by a query")
    box.press_sequentially("diverged")
    page.get_by_role("option", name="Diverged in the last 7 days").click()
    expect(page.locator("tr.job")).to_have_count(0)
    expect(box).to_have_value("diverged = true and age < 7d")
    page = table(runs)
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Diverged in the last 7 days").click()
    expect(page.locator("tr.job")).to_have_count(0)
    expect(box).to_have_value("diverged = true and age < 7d")


def test_an_error_names_its_position_and_a_suggestion(runs: Visit) -> None:
    page = table(runs, where="seed = 1 and optimiser.lr < 1")
    alert = page.get_by_role("alert").filter(has_text="column 14")
    expect(alert).to_contain_text("did you mean optimizer.lr")
    expect(alert.locator("span code").last).to_have_text("optimizer.lr")
    expect(alert.locator("pre")).to_have_text(re.compile(r"^seed = 1 and optimiser\.lr < 1\s+\^$"))
    box = page.get_by_role("combobox", name="Filter by a query")
    box.fill("seed = 0")
    box.press("Enter")
    expect(alert).to_be_hidden()
    expect(page.locator("tr.job")).to_have_count(3)
    runs.ignore_errors("422")


def test_what_an_error_proposes_is_applied_by_a_click(runs: Visit) -> None:
    page = table(runs, where="seed = 1 and optimiser.lr < 0.05")
    page.get_by_role("button", name="Use optimizer.lr").click()
    expect(page.locator("tr.job")).to_have_count(2)
    box = page.get_by_role("combobox", name="Filter by a query")
    expect(box).to_have_value("seed = 1 and optimizer.lr < 0.05")
    expect(page.get_by_role("button", name="Use optimizer.lr")).to_have_count(0)
    box.fill("status = finished")
    box.press("Enter")
    page.get_by_role("button", name="Use succeeded").click()
    expect(page.locator("tr.job")).to_have_count(6)
    runs.ignore_errors("422")


def test_columns_are_chosen_moved_pinned_and_hidden_with_the_keyboard(runs: Visit) -> None:
    page = runs.go("/jobs")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Find a column").fill("eval/loss")
    statistics = page.get_by_role("group", name="eval/loss").locator("label")
    assert len({(box := label.bounding_box()) and box["y"] for label in statistics.all()}) == 1, "they are in one line"
    page.get_by_role("group", name="eval/loss").get_by_label("min").check()
    page.get_by_role("button", name="Show these columns").click()
    expect(page.locator("tr.job td.value").last).to_have_text("1")
    for item in ("Move left", "Pin"):
        page.get_by_role("button", name="Options of min(eval/loss)").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name=item, exact=True).press("Enter")
    expect(page.locator("thead th").nth(1)).to_have_attribute("data-column", "min(eval/loss)")
    page.get_by_role("button", name="Options of Strategy").press("Enter")
    page.get_by_role("button", name="Hide", exact=True).press("Enter")
    expect(page.locator("th.strategy")).to_have_count(0)
    page.reload()
    expect(page.locator("thead th").nth(1)).to_have_attribute("data-column", "min(eval/loss)")


def test_groups_have_mean_and_deviation(runs: Visit) -> None:
    page = table(runs, sort="eval/loss", group="optimizer.lr")
    groups = page.locator("tr.group")
    expect(groups).to_have_count(3)
    expect(groups.first).to_contain_text("optimizer.lr 0.1 · 2 jobs")
    expect(groups.first.locator("td.value").last).to_have_text("1.5 ± 0.71")
    groups.first.get_by_role("button").click()
    expect(page.locator("tr.job")).to_have_count(4)
    page.get_by_role("button", name="Stop grouping").click()
    expect(page.locator("tr.job")).to_have_count(6)


def test_jobs_are_grouped_by_several_fields(runs: Visit) -> None:
    page = table(runs, sort="eval/loss", group="optimizer.lr")
    menu = page.get_by_role("button", name="Options of Status")
    menu.press("Enter")
    page.get_by_role("button", name="Group by this too").press("Enter")
    groups = page.locator("tr.group")
    expect(page.locator("#grouped")).to_contain_text("grouped by optimizer.lr, Status")
    expect(groups.first).to_contain_text("lr 0.1, Status")
    expect(groups.first.locator("td.name")).to_have_attribute("title", re.compile("^optimizer.lr 0.1, Status .* · "))
    page.reload()
    expect(groups.first).to_contain_text("lr 0.1, Status")
    expect(page.locator("#where-error")).to_be_hidden()
    menu.press("Enter")
    page.get_by_role("button", name="Stop grouping by this").press("Enter")
    expect(page.locator("#grouped")).not_to_contain_text("Status")
    expect(groups).to_have_count(3)


def test_the_selection_is_drawn_next_to_the_table_and_tagged(runs: Visit) -> None:
    page = table(runs, sort="eval/loss")
    for name in ("run-0", "run-1"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    panel = page.get_by_role("region", name="Charts of the selected jobs")
    expect(panel.locator(".legend").first).to_have_text("run-0run-1")
    expect(page).to_have_url(re.compile(r"job=job_.*job=job_"))
    page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Tag").click()
    page.get_by_label("Add").fill("baseline, stage=prod")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("tr.job").first.locator(".tag")).to_have_text(["baseline", "stage=prod"])
    table(runs, where="tag = baseline")
    expect(page.locator("tr.job")).to_have_count(2)


def test_charts_of_the_selection_have_the_tools_of_all_charts(runs: Visit) -> None:
    page = table(runs, sort="eval/loss")
    page.get_by_role("checkbox", name="Select run-0").check()
    panel = page.get_by_role("region", name="Charts of the selected jobs")
    panel.get_by_label("Smooth").fill("0.5")
    panel.locator("#chart-options > summary").click()
    panel.get_by_label("Clip outliers").check()
    panel.get_by_role("button", name="Combine metrics").click()
    for key in ("train/loss", "eval/loss"):
        page.locator(f"#combination-list input[value='{key}']").check()
    page.get_by_role("button", name="Add chart").click()
    page.locator("[id^=chart-combined]").scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('[id^=chart-combined] .frame').chart.curves.length > 1")
    expect(page).to_have_url(re.compile(r"smooth=0\.5.*clip=1.*chart=train%2Floss%2Ceval%2Floss"))


def test_an_axis_is_offered_where_all_selected_runs_have_it(runs: Visit) -> None:
    page = table(runs, sort="eval/loss")
    for name in ("run-0", "run-1"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    axis = page.locator("#charts-panel #axis")
    page.locator("#chart-options > summary").click()
    axis.select_option("tokens")
    page.wait_for_function("() => document.querySelector('#charts .frame')?.chart.curves[0]?.x.at(-1) === 900")
    expect(page).to_have_url(re.compile("x=tokens"))
    page.get_by_role("checkbox", name="Select run-2").check()
    expect(axis).to_have_value("step")
    expect(axis.locator("option")).to_have_text(["step", "training time"])
    page.wait_for_function("() => document.querySelector('#charts .frame').chart.curves.length === 3")
    expect(page).not_to_have_url(re.compile("x=tokens"))
    expect(page.locator("#toast")).to_be_hidden()


def test_the_axis_of_the_drawn_curves_returns_if_another_is_refused(runs: Visit) -> None:
    page = table(runs, sort="eval/loss")
    page.get_by_role("checkbox", name="Select run-0").check()
    page.wait_for_function("() => document.querySelector('#charts .frame')?.chart.curves.length === 1")
    refusal = {"error": {"code": "conflict", "message": "not now", "param": None}}
    page.route("**/v1/metrics?*x=time*", lambda route: route.fulfill(status=409, json=refusal))
    axis = page.locator("#charts-panel #axis")
    page.locator("#chart-options > summary").click()
    axis.select_option("seconds")
    expect(page.locator("#toast")).to_contain_text("not now")
    expect(axis).to_have_value("step")
    runs.ignore_errors("status of 409")


def test_a_view_is_saved_and_opened(runs: Visit) -> None:
    page = table(runs, sort="-eval/loss", where="seed = 0")
    page.locator("#views summary").click()
    page.get_by_role("button", name="Save this view").click()
    page.get_by_label("Name", exact=True).fill("Worst first")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#toast")).to_have_text("Saved the view Worst first.")
    runs.go("/jobs")
    page.locator("#views summary").click()
    page.get_by_role("button", name="Worst first", exact=False).first.click()
    expect(page.locator("tr.job .name a").first).to_have_text("run-4")
    expect(page.locator("tr.job")).to_have_count(3)
    expect(page.locator("thead th")).to_have_count(1 + len(COLUMNS))


def test_notes_are_markdown_that_runs_nothing(runs: Visit, experiment: tuple[World, str]) -> None:
    world, _ = experiment
    job = world.client.get("/v1/jobs").json()["data"][0]
    page = runs.go(f"/jobs/{job['id']}")
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Edit name, tags and notes").click()
    page.get_by_label("Notes, in Markdown").fill(
        "# Why\n**bold** <img src=x onerror=alert(1)> [x](javascript:alert(1))"
        " [docs](https://example.org/a)\n- one\n- two"
    )
    page.get_by_role("button", name="Save", exact=True).click()
    notes = page.get_by_role("region", name="Notes")
    expect(notes.locator("strong")).to_have_text("bold")
    expect(notes.locator("li")).to_have_count(2)
    expect(notes.locator("a")).to_have_attribute("href", "https://example.org/a")
    assert notes.locator("img").count() == 0
    assert notes.locator("a").count() == 1
