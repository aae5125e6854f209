"""A search for the best values, made and watched in the browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.web.test_submit import written
from tests.web.test_sweeps import SEARCHED
from trainyard.client import Client

pytestmark = [pytest.mark.web]


@pytest.mark.slow
def test_search_is_made_from_fields_and_ranked(visit: Visit, client: Client) -> None:
    page = written(visit.go("/submit"), SEARCHED)
    page.get_by_text("Search for the best values").click()
    expect(page.get_by_label("Field", exact=True)).to_have_value("optimizer.lr")
    expect(page.get_by_label("Range", exact=True)).to_have_value("log:0.0010:0.10")
    page.get_by_role("button", name="Add a field").click()
    page.get_by_label("Field", exact=True).last.fill("seed")
    page.keyboard.press("Tab")
    page.keyboard.type("1,2")  # in place of the range that is proposed
    page.get_by_label("Metric", exact=True).fill("train/loss")
    page.get_by_label("Better").select_option("min")
    page.get_by_label("Trials").fill("3")
    page.get_by_label("At once").fill("3")
    page.get_by_role("button", name="Start the sweep").click()

    page.wait_for_url(re.compile(r"/compare\?sweep=swp_"))
    sweep = page.url.partition("sweep=")[2]
    assert page.url == client.sweep_url(sweep)
    expect(page.locator("#sweep-state")).to_contain_text("tpe: 3 of at most 3 trials, 3 completed", timeout=60_000)
    expect(page.locator("#sweep-state")).to_contain_text("of process time")
    members = {member.rank: member for member in client.sweep(sweep).members}
    rows = page.locator("#ranking tbody tr")
    expect(rows).to_have_count(3)
    for rank, row in enumerate(rows.all(), 1):
        expect(row.get_by_role("link")).to_have_text(f"untitled #{members[rank].number}")
        expect(row.locator(".chip").last).to_have_text("succeeded")
    assert members[1].value <= members[2].value <= members[3].value
    expect(rows.first).to_contain_text("best")
    assert_accessible(page)
    assert all(0.001 <= float(member.values["optimizer.lr"]) <= 0.1 for member in members.values())

    expect(page.locator("#sweep-state")).to_contain_text("Ranked by the last value of Train loss: the smallest first")

    page.get_by_role("link", name=re.compile("twice the steps")).click()
    page.wait_for_url(re.compile(r"/submit\?"))
    expect(page.locator("#sizes")).to_contain_text("40 steps on 1 CPU process")
    text = page.locator("#spec").input_value()
    assert text.startswith("# `steps` is doubled: 40 instead of 20.\n")
    assert f"lr: {members[1].values['optimizer.lr']}" in text
