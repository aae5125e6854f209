"""The page that compares runs, with jobs that have trained."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.web.assets import Assets
from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from tests.web.specs import SPEC
from trainyard.client import Client
from trainyard.contract.wire.curves import Series
from trainyard.contract.wire.sweeps import SweepDetail

pytestmark = [pytest.mark.web]

FORMAT = "async ([url, value]) => (await import(url)).number(value)"
CHART = "document.querySelector('#chart-selected .frame').chart"


@pytest.fixture(scope="module")
def sweep(service: LiveService, client: Client) -> SweepDetail:
    """A sweep with two members that have succeeded."""
    base = {**SPEC, "name": "of-a-sweep", "steps": 60}
    detail = client.submit_sweep(base, grid={"optimizer.lr": [0.001, 0.1]}, name="two rates")
    for member in detail.members:
        service.train(member.job_id)
        wait_for_status(client, member.job_id, "succeeded")
    return detail


def ids(sweep: SweepDetail) -> list[str]:
    return [member.job_id for member in sweep.members]


def drawn_curves(page: Page, count: int) -> list[dict[str, Any]]:
    """Return the points of each curve, once the chart has `count` curves."""
    page.wait_for_function(f"count => {CHART}.curves.length === count", arg=count)
    rows: list[dict[str, Any]] = page.evaluate(f"() => {CHART}.curves.map(one => ({{x: one.x, y: one.y}}))")
    return rows


def last_value(page: Page, curve: Series) -> str:
    """Return the last value of a curve as the page shows it."""
    text: str = page.evaluate(FORMAT, [Assets().url("format.js"), curve.values[-1]])
    return text


def api_curves(client: Client, jobs: Sequence[str]) -> list[dict[str, Any]]:
    rows = client.metrics_of(jobs, ["train/loss"])
    return [{"x": metrics.series[0].steps, "y": metrics.series[0].values} for metrics in rows]


def test_runs_of_one_name_are_named_by_what_differs(visit: Visit, client: Client, sweep: SweepDetail) -> None:
    page = visit.go("/compare?" + "&".join(f"job={one}" for one in ids(sweep)))
    names = page.locator("#runs tbody .name a")
    expect(names).to_have_text(["of-a-sweep lr 0.001", "of-a-sweep lr 0.1"])
    twins = [client.submit({**SPEC, "name": "twin", "steps": 60}).id for _ in range(2)]
    page = visit.go("/compare?" + "&".join(f"job={one}" for one in twins))
    expect(names).to_have_text([f"twin …{one[-4:]}" for one in twins])
    for one in twins:
        client.cancel(one)


def test_curves_and_differing_fields_match_the_api(visit: Visit, client: Client, sweep: SweepDetail) -> None:
    first, second = ids(sweep)
    page = visit.go(f"/compare?job={first}&job={second}")
    expect(page.locator("#key")).to_have_value("eval/loss")  # which ranks both
    expect(page.locator("#chart-note")).to_have_text("Each run has one point of this metric.")
    expect(page.locator("#runs thead th.right")).to_have_text(["Value", "Min eval/loss", "Max eval/loss"])
    page.locator("#key").select_option("train/loss")
    expect(page.locator("#chart-selected .chart-title")).to_have_text("train/loss")
    expect(page.locator("#runs thead th.right")).to_have_text(["Value", "Min train/loss", "Max train/loss"])
    assert drawn_curves(page, 2) == api_curves(client, [first, second])
    expect(page.locator("#runs th.mono")).to_have_text(["optimizer.lr"])
    expect(page.locator("#runs tbody tr td:nth-child(4)")).to_have_text(["0.001", "0.1"])
    (loss,) = client.metrics(first, ["train/loss"]).series
    row = page.locator(f'tr[data-id="{first}"]')
    assert float(row.locator(".min").inner_text()) == pytest.approx(min(loss.values), rel=1e-3)
    assert float(row.locator(".at").inner_text()) == pytest.approx(loss.values[-1], rel=1e-3)


def test_pointer_links_curves_rows_and_values(visit: Visit, client: Client, sweep: SweepDetail) -> None:
    first, second = ids(sweep)
    page = visit.page
    page.set_viewport_size({"width": 1440, "height": 900})
    visit.go(f"/compare?job={first}&job={second}&key=train/loss")
    drawn_curves(page, 2)
    rows = [page.locator(f'#runs tr[data-id="{one}"]') for one in (first, second)]
    series = [client.metrics(one, ["train/loss"]).series[0] for one in (first, second)]
    for row, curve in zip(rows, series, strict=True):
        page.mouse.move(2, 2)
        expect(row.locator(".at")).to_have_text(last_value(page, curve))
        box, chart = row.bounding_box(), page.locator("#chart-selected").bounding_box()
        assert box is not None
        assert chart is not None
        assert box["x"] >= chart["x"] + chart["width"], "the table is the legend beside the chart"
        step, value = curve.steps[len(curve.steps) // 2], curve.values[len(curve.steps) // 2]
        left, top = page.evaluate(
            f"([x, y]) => [{CHART}.plot.valToPos(x, 'x'), {CHART}.transform('y')(y) / devicePixelRatio"
            f" - {CHART}.plot.bbox.top / devicePixelRatio]",
            [step, value],
        )
        page.locator("#chart-selected .u-over").hover(position={"x": left, "y": top})
        expect(row.locator(".at")).to_have_text(page.evaluate(FORMAT, [Assets().url("format.js"), value]))
        expect(page.locator("#runs tr.highlighted")).to_have_count(1)
    page.mouse.move(2, 2)
    expect(page.locator("#runs tr.highlighted")).to_have_count(0)
    expect(rows[0].locator(".at")).to_have_text(last_value(page, series[0]))
    page.get_by_label("values at").fill(str(series[0].steps[1]))
    expect(rows[0].locator(".at")).to_have_text(page.evaluate(FORMAT, [Assets().url("format.js"), series[0].values[1]]))
    expect(page).to_have_url(re.compile(f"[?&]at={series[0].steps[1]}"))


def test_groups_have_their_mean_and_deviation(script_tab: Page) -> None:
    mean = script_tab.evaluate(
        "async ([url, curves]) => (await import(url)).meanCurve(curves)",
        [Assets().url("run_groups.js"), [{"x": [0, 2, 4], "y": [1, 3, 5]}, {"x": [1, 2], "y": [4, 5]}]],
    )
    assert mean["x"] == [0, 1, 2, 4]
    assert mean["y"] == [1, 3, 4, 5]
    assert mean["band"][0] == pytest.approx([1, 3 - 2**0.5, 4 - 2**0.5, 5])
    assert mean["band"][1] == pytest.approx([1, 3 + 2**0.5, 4 + 2**0.5, 5])


def test_runs_are_grouped_by_a_field_of_the_address(visit: Visit, sweep: SweepDetail) -> None:
    first, second = ids(sweep)
    page = visit.go(f"/compare?job={first}&job={second}&key=train/loss")
    drawn_curves(page, 2)
    page.get_by_label("group by").select_option("optimizer.lr")
    for _ in range(2):
        page.wait_for_function(f"() => {CHART}?.curves.length === 2 && {CHART}.curves.every((one) => one.band)")
        names = page.evaluate(f"{CHART}.curves.map((one) => one.name)")
        assert names == ["optimizer.lr 0.001 (1 run)", "optimizer.lr 0.1 (1 run)"]
        expect(page).to_have_url(re.compile("[?&]group=optimizer.lr"))
        page.reload()
    page.get_by_label("group by").select_option("")
    page.wait_for_function(f"() => {CHART}.curves.every((one) => !one.band)")


def test_runs_are_hidden_and_the_address_has_them(visit: Visit, sweep: SweepDetail) -> None:
    first, second = ids(sweep)
    page = visit.go(f"/compare?job={first}&job={second}&key=train/loss")
    drawn_curves(page, 2)
    row = page.locator(f'#runs tr[data-id="{first}"]')
    row.get_by_role("checkbox").uncheck()
    drawn_curves(page, 1)
    expect(page).to_have_url(re.compile(f"[?&]hide={first}"))
    page.reload()
    drawn_curves(page, 1)
    expect(row.get_by_role("checkbox")).not_to_be_checked()
    row.get_by_role("checkbox").check()
    drawn_curves(page, 2)
    expect(page).not_to_have_url(re.compile("hide="))


def test_scale_smoothing_and_axis_are_stored_in_the_address(visit: Visit, sweep: SweepDetail) -> None:
    page = visit.go(f"/compare?job={ids(sweep)[0]}&job={ids(sweep)[1]}&key=train/loss")
    drawn_curves(page, 2)
    page.locator("#chart-options > summary").click()
    page.get_by_label("Log scale").first.check()
    page.locator("#axis").select_option("seconds")
    page.get_by_label("Smooth").fill("0.9")
    drawn_curves(page, 4)
    expect(page).to_have_url(re.compile("smooth=0.9"))
    page.reload()
    curves = drawn_curves(page, 4)
    assert all(curve["x"][0] >= 0 and curve["x"][-1] < 600 for curve in curves)
    assert page.evaluate(f"{CHART}.view.log")
    expect(page.get_by_label("Smooth")).to_have_value("0.9")


def test_an_axis_that_a_run_lacks_is_not_offered(visit: Visit, sweep: SweepDetail) -> None:
    page = visit.go(f"/compare?job={ids(sweep)[0]}&job={ids(sweep)[1]}&x=tokens")
    drawn_curves(page, 2)
    expect(page.locator("#axis")).to_have_value("step")
    expect(page.locator("#axis option")).to_have_text(["step", "training time"])
    expect(page).not_to_have_url(re.compile("x=tokens"))
    expect(page.locator("#toast")).to_be_hidden()


def test_run_is_added_by_search_and_removed(visit: Visit, client: Client, sweep: SweepDetail) -> None:
    first, second = ids(sweep)
    page = visit.go("/compare")
    expect(page.get_by_role("heading", name="Nothing to compare yet")).to_be_visible()
    for job_id in (first, second):
        page.get_by_label("Add a run by name or id").fill(job_id)
        expect(page.locator("#search-results a")).to_have_count(1)
        page.locator("#search-results a").click()
        expect(page.locator(f'tr[data-id="{job_id}"]')).to_be_visible()
    drawn_curves(page, 2)
    page.get_by_role("link", name="Remove of-a-sweep").first.click()
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    expect(page).to_have_url(f"{visit.url}/compare?job={second}")


def test_sweep_has_parallel_coordinates_that_filter(visit: Visit, sweep: SweepDetail) -> None:
    page = visit.go(f"/jobs/{ids(sweep)[0]}")
    expect(page).to_have_title(re.compile(r"of-a-sweep #0 \(optimizer.lr=0.001\)"))
    expect(page.locator(".bar-row")).to_contain_text("of-a-sweep #0 optimizer.lr=0.001")
    expect(page.locator("#summary")).to_have_text(re.compile(r"steps\. Best eval/loss: [\d.]+ at step 60\.$"))
    page.get_by_role("link", name="its sweep").click()
    expect(page.get_by_role("heading", name="two rates")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel remaining")).to_be_hidden()
    page.get_by_role("link", name="View jobs").click()
    expect(page.locator("tr.job .name small")).to_have_text(["lr 0.1", "lr 0.001"])
    expect(page.locator('tr.job td[data-label="optimizer.lr"]')).to_have_text(["0.1", "0.001"])
    expect(page.locator('tr.job td[data-label="eval/loss"]')).to_have_text([re.compile(r"^\d")] * 2)
    expect(page.locator("#sweep-filter")).to_contain_text("of sweep two rates")
    expect(page.locator("#sweep-filter a")).to_have_attribute("href", f"/compare?sweep={sweep.id}")
    page.locator("#sweep-filter button").click()
    expect(page).not_to_have_url(re.compile("[?&]sweep="))
    page.reload()
    members = page.locator("tr.job .name").filter(has_text="of-a-sweep").locator("small")
    expect(members.filter(has_text=re.compile("^lr"))).to_have_text(["lr 0.1", "lr 0.001"])
    page = visit.go("/compare")
    page.get_by_role("link", name="two rates").click()
    metric = re.compile(r"^eval/loss( \(log\))?$")  # logarithmic if the values differ enough
    expect(page.locator("#parallel text.title")).to_have_text([rate := "optimizer.lr (log)", metric])
    expect(page.locator("#scatter text.title")).to_have_text([rate, metric])
    expect(page.locator("#ranking a")).to_have_text([re.compile(r"^of-a-sweep #[01]$")] * 2)
    expect(page.locator("#parallel path")).to_have_count(2)
    expect(page.get_by_role("link", name=re.compile("^Remove"))).to_have_count(0)
    page.locator("#outcome").select_option("train/loss")
    expect(page.locator("#parallel text.title").last).to_have_text(re.compile("^train/loss"))
    page.locator("#parallel").scroll_into_view_if_needed()
    handle = page.locator("#parallel .handle").first.bounding_box()
    assert handle is not None
    middle = handle["x"] + handle["width"] / 2
    page.mouse.move(middle, handle["y"] + 2)
    page.mouse.down()
    page.mouse.move(middle, handle["y"] + handle["height"] / 3)
    page.mouse.up()
    expect(page.locator("#runs tr.off")).to_have_attribute("data-id", ids(sweep)[0])
    page.mouse.dblclick(middle, handle["y"] + 2)
    expect(page.locator("#runs tr.off")).to_have_count(0)


def test_deleted_job_is_reported(visit: Visit) -> None:
    gone = "job_01kdvdna00az9cxjnszk8v8abh"
    page = visit.go(f"/compare?job={gone}")
    expect(page.get_by_text(f"Job {gone} no longer exists.")).to_be_visible()


def test_too_many_runs_in_an_address_are_refused_by_name(visit: Visit) -> None:
    page = visit.go("/compare?" + "&".join(f"job=job_{number:026d}" for number in range(51)))
    expect(page.locator("main")).to_contain_text("job: must have at most 50 items, not 51")
    visit.ignore_errors("Failed to load resource")
