"""A search for the best values, made and watched in the browser."""

import pytest
from playwright.sync_api import Browser, Page, expect

from service.web.assets import Assets
from tests.support.browser import Visit, open_tab_in_new_profile
from tests.support.live_world import served
from tests.support.world import SPEC, World
from tests.web.test_submit import TEXT, written

pytestmark = [pytest.mark.web]

SEARCHED = TEXT.replace("steps: 200", "steps: 20") + "optimizer: {name: sgd, lr: 0.01}\nlog: {every_steps: 5}\n"


def test_axis_of_a_metric_is_logarithmic_only_for_losses(script_tab: Page) -> None:
    scales = script_tab.evaluate(
        """async (url) => {
          const { scale, hasRatios } = await import(url);
          const metrics = ["eval/loss", "train/lr", "loss", "eval/accuracy", "glossary", "eval/loss/de"];
          const values = [0.05, 0.5, 0.9];
          return [metrics.filter(hasRatios), [null, false, true].map((log) => scale(values, log).isLogarithmic),
                  scale([0.5, 0.9]).isLogarithmic, scale([-1, 100]).isLogarithmic];
        }""",
        Assets().url("parallel_coordinates.js"),
    )
    assert scales == [["eval/loss", "train/lr", "loss", "eval/loss/de"], [True, False, True], False, False]


def test_problem_of_a_range_is_named(visit: Visit) -> None:
    page = written(visit.go("/submit"), SEARCHED)
    page.get_by_text("Search for the best values").click()
    expect(page.get_by_role("button", name="Submit one job")).not_to_have_class("primary")
    page.get_by_label("Range", exact=True).fill("log:0:1")
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.locator("#sweep-problem")).to_contain_text("optimizer.lr")
    page.get_by_role("button", name="Remove the field").click()
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.locator("#sweep-problem")).to_have_text("Add at least one field and its range.")
    page.get_by_text("Search for the best values").click()
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_class("primary")
    visit.ignore_errors("status of 422")


def test_a_search_opened_before_its_first_runs_shows_them(browser: Browser, world: World) -> None:
    search = {"algorithm": "random", "space": {"optimizer.lr": "log:0.001:0.1"}, "max_trials": 4, "metric": "eval/loss"}
    body = {"name": "rates", "spec": {**SPEC, "name": "rates"}, "search": search, "max_parallel": 2}
    answer = world.client.post("/v1/sweeps", json=body)
    assert answer.status_code == 201, answer.text
    with served(world) as url, open_tab_in_new_profile(browser, url) as visit:
        page = visit.sign_in(world.token, f"/compare?sweep={answer.json()['id']}")
        expect(page.locator("#sweep-size")).to_have_text("0 jobs")
        expect(page.get_by_text("No member yet")).to_be_visible()
        world.search()
        expect(page.get_by_role("button", name="Cancel remaining")).to_be_visible()
        expect(page.locator("#sweep-size")).to_have_text("1 job")
        world.search()
        expect(page.locator("#sweep-size")).to_have_text("2 jobs")
        expect(page.get_by_role("button", name="Show the curves of 1 new run")).to_be_visible()
        visit.assert_clean()
