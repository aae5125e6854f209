"""The page of one job, while it trains."""

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import MEASURE_SHIFTS, Visit, open_tab_in_new_profile
from tests.support.live import wait_for_status, wait_for_step
from tests.support.live_service import LiveService
from tests.support.tcp_proxy import start_proxy
from tests.web.specs import ENDLESS_SPEC, RUNNING_JOB_NAME, SPEC
from trainyard.client import Client
from trainyard.client.errors import NotFoundError

pytestmark = [pytest.mark.web]


def points(page: Page, chart: str = "loss") -> dict[int, float]:
    """Return the points of a chart's first curve."""
    drawn = page.evaluate(
        "id => { const [one] = document.querySelector(`#chart-${id} .frame`).chart.curves.slice(-1);"
        " return one ? [one.x, one.y] : [[], []]; }",
        chart,
    )
    return dict(zip(*drawn, strict=True))


def wait_for_points(page: Page, after: int) -> None:
    """Wait until the loss chart has a point after a step."""
    page.wait_for_function(
        "step => document.querySelector('#chart-loss .frame').chart.curves[0]?.x.at(-1) > step",
        arg=after,
        timeout=60_000,
    )


def test_curves_and_log_update_live_without_layout_shift(new_tab: Visit, running_job: Any) -> None:
    new_tab.page.add_init_script(MEASURE_SHIFTS)
    page = new_tab.go(f"/jobs/{running_job.id}")
    page.evaluate("window.untouched = true")
    expect(page.locator("#summary")).to_contain_text(re.compile(r"^Running on .+: step .+ of 1.000.000"))
    wait_for_points(page, 30)
    before, lines = max(points(page)), page.locator("#log").inner_text()
    wait_for_points(page, before + 20)
    expect(page.locator("#log")).not_to_have_text(lines)
    assert page.evaluate("window.untouched")
    assert page.evaluate("window.layoutShift") < 0.02


@pytest.mark.parametrize("metrics", [("train/loss", "layer/norm"), ("layer/norm", "score")])
def test_charts_of_an_ended_job_cause_no_layout_shift(
    metrics: tuple[str, str], new_tab: Visit, client: Client, service: LiveService
) -> None:
    job = client.submit({**SPEC, "name": "few-charts"})
    worker = service.start(job.id)
    worker.metrics([(metric, step, 1 / step) for metric in metrics for step in range(1, 50)])
    worker.succeed()
    wait_for_status(client, job.id, "succeeded")
    new_tab.page.add_init_script(MEASURE_SHIFTS)
    page = new_tab.go(f"/jobs/{job.id}?tab=charts")
    page.wait_for_function("() => document.querySelectorAll('#charts canvas').length === 2")
    assert page.evaluate("window.layoutShift") < 0.02


def test_first_view_is_rendered_from_the_embedded_data(visit: Visit, running_job: Any) -> None:
    page = visit.page
    page.route("**/v1/**", lambda route: route.abort())
    visit.go(f"/jobs/{running_job.id}")
    page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.curves[0]?.x.length > 1")
    expect(page.locator("#status")).to_have_text("running")
    expect(page.locator("#fact-loss")).to_have_text(re.compile(r"\d"))
    page.unroute("**/v1/**")
    visit.ignore_network_errors()


def test_page_without_scripts_names_the_alternatives(visit: Visit, running_job: Any) -> None:
    context = visit.page.context.browser.new_context(  # type: ignore[union-attr]
        java_script_enabled=False, storage_state=visit.page.context.storage_state()
    )
    page = context.new_page()
    page.goto(f"{visit.url}/jobs/{running_job.id}")
    expect(page.get_by_role("heading", name=RUNNING_JOB_NAME, exact=True)).to_be_visible()
    expect(page.locator("noscript p")).to_contain_text("This page needs JavaScript")
    expect(page.locator("noscript p")).to_be_visible()
    context.close()


def test_charts_wait_for_complete_curves(visit: Visit, running_job: Any) -> None:
    page = visit.page
    pending_routes: list[Route] = []
    page.route("**/v1/jobs/*/metrics*", lambda route: pending_routes.append(route))
    visit.go(f"/jobs/{running_job.id}")
    step = page.locator("#fact-step")
    for _ in range(3):
        expect(step).not_to_have_text(step.inner_text(), timeout=20_000)
    preview = points(page)
    assert min(preview) <= ENDLESS_SPEC["log"]["every_steps"], "no curve of the streamed points alone"
    page.unroute("**/v1/jobs/*/metrics*")  # which continues the held requests
    wait_for_points(page, max(preview) + 1)
    assert min(points(page)) <= ENDLESS_SPEC["log"]["every_steps"]


def test_zoom_applies_to_all_charts_and_can_be_reset(visit: Visit, client: Client, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}?tab=charts")
    wait_for_points(page, 210)
    page.evaluate("document.querySelector('#chart-loss .frame').chart.onZoom([10, 210])")
    page.wait_for_function("() => String(document.querySelector('#chart-norm .frame').chart.xRange) === '10,210'")
    (loss,) = client.metrics(running_job.id, ["train/loss"], max_points=1_000_000).series
    within = [value for step, value in zip(loss.steps, loss.values, strict=True) if 10 <= step <= 210]
    margin = (max(within) - min(within)) / 20
    page.wait_for_function(
        "([low, high]) => { const [from, to] = document.querySelector('#chart-loss .frame').chart.yRange;"
        " return Math.abs(from - low) < 1e-6 && Math.abs(to - high) < 1e-6; }",
        arg=[min(within) - margin, max(within) + margin],
    )
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("() => document.querySelector('#chart-norm .frame').chart.xRange[1] > 210")


def test_zoomed_curve_is_updated_live(visit: Visit, running_job: Any) -> None:
    page = visit.page
    requests: list[str] = []

    def as_truncated(route: Route) -> None:
        requests.append(route.request.url)
        answer = route.fetch()
        series = answer.json()
        route.fulfill(
            response=answer, json={**series, "series": [{**one, "truncated": True} for one in series["series"]]}
        )

    page.route("**/v1/jobs/*/metrics*", as_truncated)
    visit.go(f"/jobs/{running_job.id}")
    wait_for_points(page, 30)
    page.evaluate("document.querySelector('#chart-loss .frame').chart.onZoom([0, 900000])")
    page.wait_for_function("() => document.querySelector('#chart-norm .frame').chart.xRange[1] === 900000")
    while not any("to_step=900000" in url for url in requests):
        page.wait_for_timeout(50)
    wait_for_points(page, max(points(page)) + 30)
    wait_for_points(page, max(points(page)) + 30)
    page.unroute("**/v1/jobs/*/metrics*")


def test_log_scale_and_smoothing_change_the_curves(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}?tab=charts")
    wait_for_points(page, 30)
    page.locator("#chart-options > summary").click()
    page.get_by_label("Log scale").first.check()
    page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.view.log")
    page.get_by_label("Smooth").fill("0.9")
    page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.curves.length === 2")
    module = str(page.locator("script[src$='/job.js']").get_attribute("src")).replace("job.js", "curves.js")
    smooth = "async from => (await import(from)).smoothed([1, 0, 0, 1], 0.5, {log: true})"
    assert page.evaluate(smooth, module) == [1, 0, 0, 1], "zeros are not part of the mean on a log scale"


def test_times_are_in_the_time_zone_of_the_user(visit: Visit, client: Client, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}?tab=charts")
    wait_for_points(page, 30)
    page.locator("#chart-options > summary").click()
    page.locator("#axis").select_option("time")
    page.wait_for_function("() => document.querySelector('#chart-loss .frame').chart.view.axis === 'time'")
    (series,) = client.metrics(running_job.id, ["train/loss"], max_points=1_000_000).series
    start = datetime.fromisoformat(str(series.times[0]))
    assert next(iter(points(page))) == pytest.approx(start.timestamp(), abs=1e-3)
    page.locator("#chart-loss .frame").focus()
    page.keyboard.press("Home")
    expect(page.locator("#chart-loss .chart-values strong")).to_contain_text(
        start.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M:%S")
    )
    offset = datetime.now(ZoneInfo("Europe/Berlin")).strftime("%z")
    zone = f"Times of this page are in Europe/Berlin, now UTC{offset[:3]}:{offset[3:]}."
    expect(page.locator(".time-zone")).to_contain_text(zone)


def test_lost_connection_is_shown_and_no_point_is_lost(
    browser: Browser, service: LiveService, token: str, client: Client, running_job: Any
) -> None:
    with start_proxy(service.port) as proxy, open_tab_in_new_profile(browser, proxy.url) as visit:
        page = visit.sign_in(token, f"/jobs/{running_job.id}")
        wait_for_points(page, 30)
        page.evaluate(MEASURE_SHIFTS)
        proxy.cut()
        expect(page.locator("#banner")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#toast")).to_have_text("The service does not answer.")
        progress = client.job(running_job.id).progress
        assert progress is not None
        wait_for_step(client, running_job.id, progress.step + 50)
        proxy.restore()
        expect(page.locator("#banner")).to_be_hidden(timeout=20_000)
        wait_for_points(page, progress.step + 60)
        shown = points(page)
        (series,) = client.metrics(running_job.id, ["train/loss"], max_points=1_000_000).series
        reported = {step: value for step, value in zip(series.steps, series.values, strict=True) if step <= max(shown)}
        assert reported.items() >= shown.items()
        missing = [step for step in reported if step not in shown and progress.step <= step]
        assert not missing
        assert page.evaluate("window.layoutShift") < 0.02
        visit.ignore_network_errors()
        visit.assert_clean()


def test_end_of_a_job_is_no_lost_connection(visit: Visit, client: Client, service: LiveService) -> None:
    job = client.submit({**SPEC, "name": "ends-while-open", "steps": 100_000})
    service.start(job.id).report(0, 10)
    page = visit.go(f"/jobs/{job.id}")
    connection = page.locator("#connection")
    expect(connection).to_have_text("Live")
    page.evaluate(
        "window.banners = [];"
        " new MutationObserver(() => window.banners.push(document.getElementById('banner').textContent))"
        ".observe(document.getElementById('banner'), {attributes: true, childList: true})"
    )
    client.cancel(job.id)
    expect(page.locator("#status")).to_have_text("cancelled", timeout=60_000)
    expect(connection).to_have_text("")
    assert "".join(page.evaluate("window.banners")) == ""


def test_log_lines_are_shown_as_text_and_searched(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}")
    log = page.locator("#log")
    expect(log).to_contain_text("<script>alert(1)</script> red\na needle here\nlast", use_inner_text=True)
    expect(page.get_by_role("heading", name=RUNNING_JOB_NAME, exact=True)).to_be_visible()
    page.get_by_label("Search the log").fill("/^a NEEDLE/")
    expect(log).to_have_text(re.compile(r"^(a needle here\s?)+$"))
    expect(page.locator("#log-matches")).to_have_text(re.compile(r"^\d+ matching lines?$"))
    count = log.locator(".line").count()
    page.wait_for_function(
        f"() => document.querySelectorAll('#log .line').length > {count}"
    )  # new lines are searched too
    page.locator("#log .at").first.focus()
    page.keyboard.press("Enter")
    expect(log.locator(".marked")).to_have_text("a needle here")
    expect(log).to_contain_text("last")
    expect(page).to_have_url(re.compile(r"[?&]line=\d+"))
    page.reload()
    expect(log.locator(".marked")).to_have_text("a needle here")


MARKS = "(document.querySelector('#chart-loss .frame').chart.view?.marks ?? [])"


def test_buttons_pause_and_resume_the_job(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}?tab=charts")
    status = page.locator("#status")
    page.get_by_role("button", name="Pause").click()
    expect(status).to_have_text("paused", timeout=60_000)
    page.get_by_role("button", name="Resume").click()
    expect(status).to_have_text("running", timeout=60_000)
    page.wait_for_function(f"() => {MARKS}.some(one => one.kind === 'resumed')", timeout=60_000)
    page.locator("#chart-options > summary").click()
    page.locator("#axis").select_option("time")
    page.wait_for_function(f"() => {MARKS}.some(one => one.kind === 'resumed' && one.x > 1e9)")
    expect(page.locator("#attempts li")).to_have_count(2)


def test_each_restart_within_an_attempt_is_marked(visit: Visit, client: Client, saved_job: str) -> None:
    (attempt,) = client.attempts(saved_job)
    assert attempt.started_at is not None
    starts = [(attempt.started_at + timedelta(seconds=n), 100 * n) for n in (1, 2)]
    events = [
        {"id": f"evt_{900_000 + 2 * n + k}", "type": kind, "level": "info", "message": kind,
         "created_at": at.isoformat(), "data": {"step": step} if k == 0 else {}}
        for n, (at, step) in enumerate(starts)
        for k, kind in enumerate(("worker.training_resumed", "worker.restarted_in_place"))
    ]  # fmt: skip
    page = visit.page

    def add_events(route: Route) -> None:
        answer = route.fetch()
        series = answer.json()
        route.fulfill(response=answer, json={**series, "data": [*reversed(events), *series["data"]]})

    page.route("**/events*", add_events)
    visit.go(f"/jobs/{saved_job}")
    for kind in ("resumed", "interrupted"):
        page.wait_for_function(
            f"() => {MARKS}.filter(one => one.kind === '{kind}').map(one => one.x).join() === '100,200'"
        )
    page.unroute("**/events*")


FAILURE = {
    "rank": 0,
    "host": "node1",
    "type": "DivergedError",
    "message": "the loss became NaN or infinite at step 5",
    "traceback": "Traceback (most recent call last):\nworker.core.errors.DivergedError: at step 5\n",
    "hint": "Lower optimizer.lr, or raise schedule.warmup_steps.",
    "final": True,
}


def test_failure_shows_rank_and_fix_and_can_be_retried(visit: Visit, client: Client, service: LiveService) -> None:
    job = client.submit({**SPEC, "name": "too-hot", "optimizer": {"name": "sgd", "lr": 1e9}})
    worker = service.start(job.id)
    worker.report(0, 5)
    worker.end("error", step=5, failure=FAILURE)
    page = visit.go(f"/jobs/{job.id}")
    expect(page.locator("#failure-title")).to_contain_text("First failure: rank 0", timeout=90_000)
    expect(page.locator("#panel h2").first).to_have_text(FAILURE["message"])
    expect(page.locator("#failure-hint")).to_contain_text("Lower optimizer.lr")
    expect(page.locator("#summary")).to_have_text(re.compile(r"^Failed after step \d+ of 400\.$"))
    page.get_by_text("Whole traceback", exact=True).click()
    expect(page.locator("#traceback")).to_contain_text("DivergedError")
    assert_accessible(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the text").click()
    expect(page.get_by_role("button", name="Copy the text")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#traceback").text_content()
    page.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("likely to fail in the same way")
    expect(dialog.get_by_role("button", name="From the last checkpoint")).to_be_hidden()
    expect(dialog.locator(".spec-changes dt")).to_have_text(["optimizer.lr"])
    expect(dialog.get_by_role("button", name="Submit with optimizer.lr = 100000000")).to_be_visible()
    dialog.get_by_role("button", name="Keep job").click()
    page.locator("#fixes").get_by_role("link", name="Edit first").first.click()
    editor = page.locator("#editor textarea")
    expect(editor).to_have_value(re.compile(r"name: too-hot-2\n.*lr: 100000000", re.DOTALL))
    page.go_back()
    fork = page.evaluate("path => fetch(path).then(response => response.text())", f"/submit?fork={job.id}")
    assert "too-hot" in fork
    assert "resume_from: " not in fork, "it has no checkpoint"
    client.retry(job.id)  # by another client: the page of a failed job polls for it
    expect(page.locator("#attempts li")).to_have_count(2, timeout=30_000)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#status")).to_have_text("cancelled", timeout=60_000)
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    page.locator("#more > summary").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete the job").click()
    page.wait_for_url(visit.url + "/jobs")
    with pytest.raises(NotFoundError):
        client.job(job.id)


def test_job_without_steps_has_no_empty_charts(visit: Visit, client: Client) -> None:
    job = client.submit({**SPEC, "name": "never-ran"})
    client.cancel(job.id)
    wait_for_status(client, job.id, "cancelled")
    page = visit.go(f"/jobs/{job.id}")
    expect(page.get_by_role("heading", name="Curves")).to_be_hidden()
    expect(page.get_by_role("heading", name="Log")).to_be_visible()


def test_ranks_are_compared_and_checkpoints_downloaded(visit: Visit, saved_job: str) -> None:
    page = visit.go(f"/jobs/{saved_job}?tab=history")
    link = page.get_by_role("link", name="Download the checkpoint of step 400")
    expect(link).to_be_visible(timeout=90_000)
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename.endswith(".tar")
    page.locator("#more > summary").click()
    expect(page.get_by_role("link", name="Download model")).to_be_visible(timeout=30_000)
    page.get_by_role("tab", name="Charts").click()
    page.locator("#chart-ranks").scroll_into_view_if_needed()
    expect(page.locator("#chart-ranks output")).to_have_text(re.compile(r"^slowest: rank [01], \+"), timeout=20_000)
    page.wait_for_function("() => document.querySelector('#chart-ranks .frame').chart.curves.length === 2")


@pytest.mark.parametrize("path", ["/jobs", "/jobs/{id}"])
def test_page_fits_a_phone(browser: Browser, service: LiveService, token: str, running_job: Any, path: str) -> None:
    with open_tab_in_new_profile(browser, service.url, size=(360, 740)) as visit:
        page = visit.sign_in(token, path.format(id=running_job.id))
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        visit.assert_clean()


def test_first_tab_stop_skips_to_the_content(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Pause")).to_be_focused()


def test_text_is_selected_if_copying_is_blocked(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as without https
    page.get_by_role("button", name=re.compile("^Copy the job.s id$")).click()
    expect(page.locator("#toast")).to_have_text("Copied.")
    page.evaluate("document.execCommand = () => false")
    page.get_by_role("tab", name="Spec & code").click()
    page.get_by_role("button", name="Copy the spec").click()
    expect(page.locator("#toast")).to_contain_text("The text is selected")
    text = page.evaluate("getSelection().toString()")
    assert yaml.safe_load(text)["target"] == "slow:build"


def test_viewer_has_no_action_buttons(signed_out: Visit, client: Client, running_job: Any) -> None:
    token = client.create_token("read-only", role="viewer").token
    page = signed_out.sign_in(token, f"/jobs/{running_job.id}")
    wait_for_points(page, 30)
    for name in ("Pause", "Cancel", "Retry", "Resume"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="Fork")).to_have_count(0)
    signed_out.go("/jobs")
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    expect(page.get_by_role("link", name="Plan")).to_be_visible()
    signed_out.assert_clean()
