"""Jobs without points, and with none that can be drawn, state so."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

Points = list[tuple[str, int, float | str]]


@pytest.fixture(scope="module")
def ended(service: LiveService, client: Client) -> Callable[[str, Points], str]:
    """Runs a job to its end with some points, and returns its id."""

    def run(name: str, points: Points) -> str:
        job = client.submit({**SPEC, "name": name})
        worker = service.start(job.id)
        if points:
            assert worker.metrics(points).status_code == 200
        worker.succeed()
        wait_for_status(client, job.id, "succeeded")
        return job.id

    return run


def test_job_without_points_states_so(visit: Visit, ended: Callable[[str, Points], str]) -> None:
    job = ended("no points", [])
    page = visit.go(f"/jobs/{job}?tab=charts")
    expect(page.get_by_text("No metrics have been reported.")).to_be_visible()
    expect(page.get_by_text("TensorBoard")).to_be_hidden()
    page.get_by_role("tab", name="Log").click()
    expect(page.locator("#log")).to_have_text("No output.")


def test_ended_job_has_no_charts_for_what_it_never_reported(visit: Visit, ended: Callable[[str, Points], str]) -> None:
    job = ended("own metric", [("accuracy", step, step / 10) for step in range(1, 9)])
    page = visit.go(f"/jobs/{job}?tab=charts")
    expect(page.locator("#charts .chart-title")).to_have_text(["accuracy"])
    expect(page.get_by_text("No points")).to_have_count(0)


def test_chart_of_values_that_are_not_finite_states_so(visit: Visit, ended: Callable[[str, Points], str]) -> None:
    job = ended("only nan", [("train/loss", step, "NaN") for step in range(1, 9)])
    for path, chart in ((f"/jobs/{job}?tab=charts", "loss"), (f"/compare?job={job}", "selected")):
        frame = visit.go(path).locator(f"#chart-{chart} .frame")
        expect(frame).to_have_attribute("data-note", "No value is finite")
