"""A search for the best values, made and watched in the browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.web.test_submit import TEXT, written
from trainyard.client import Client

pytestmark = [pytest.mark.web]

SEARCHED = TEXT.replace("steps: 200", "steps: 20") + "optimizer: {name: sgd, lr: 0.01}\nlog: {every_steps: 5}\n"


def test_search_is_made_from_fields_and_ranked(visit: Visit, client: Client) -> None:
    page = written(visit.go("/submit"), SEARCHED)
    page.get_by_text("Search for the best values").click()
    expect(page.get_by_label("Field", exact=True)).to_have_value("optimizer.lr")
    expect(page.get_by_label("Range", exact=True)).to_have_value("log:0.0010:0.10")
    page.get_by_label("Metric", exact=True).fill("train/loss")
    page.get_by_label("Better").select_option("min")
    page.get_by_label("Trials").fill("3")
    page.get_by_label("At once").fill("3")
    page.get_by_role("button", name="Start the sweep").click()

    page.wait_for_url(re.compile(r"/compare\?sweep=swp_"))
    sweep = page.url.partition("sweep=")[2]
    expect(page.locator("#sweep-state")).to_contain_text("tpe: 3 of at most 3 trials, 3 completed", timeout=60_000)
    expect(page.locator("#sweep-state")).to_contain_text("of process time")
    members = {member.rank: member for member in client.sweep(sweep).members}
    rows = page.locator("#ranking tbody tr")
    expect(rows).to_have_count(3)
    for rank, row in enumerate(rows.all(), 1):
        expect(row.get_by_role("link")).to_have_text(f"#{members[rank].number}")
        expect(row.locator(".chip").last).to_have_text("succeeded")
    assert members[1].value <= members[2].value <= members[3].value
    expect(rows.first).to_contain_text("best")
    assert_accessible(page)
    assert all(0.001 <= float(member.values["optimizer.lr"]) <= 0.1 for member in members.values())

    page.get_by_role("button", name=re.compile("twice the steps")).click()
    page.wait_for_url(re.compile(r"/jobs/job_"))
    longer = client.job(page.url.rpartition("/")[2]).spec
    assert (longer["steps"], longer["optimizer"]["lr"]) == (40, members[1].values["optimizer.lr"])


def test_problem_of_a_range_is_named(visit: Visit) -> None:
    page = written(visit.go("/submit"), SEARCHED)
    page.get_by_text("Search for the best values").click()
    page.get_by_label("Range", exact=True).fill("log:0:1")
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.locator("#sweep-problem")).to_contain_text("optimizer.lr")
    page.get_by_role("button", name="Remove the field").click()
    page.get_by_role("button", name="Start the sweep").click()
    expect(page.locator("#sweep-problem")).to_have_text("Add at least one field and its range.")
    visit.ignore_errors("status of 422")
