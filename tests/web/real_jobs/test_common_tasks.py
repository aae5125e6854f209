"""Three common tasks, by what the pages show: the best run again, and a failed job with a fix."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

PROGRAM = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(parser.parse_args())
"""


@pytest.mark.heavy
def test_the_best_of_a_sweep_is_submitted_with_twice_the_steps(visit: Visit, client: Client) -> None:
    sweep = client.submit_sweep(
        {**SPEC, "name": "of-many", "steps": 10}, grid={"optimizer.lr": [0.001, 0.1]}, name="many"
    )
    for member in sweep.members:
        wait_for_status(client, member.job_id, "succeeded")
    page = visit.go("/jobs")
    page.get_by_role("link", name="of-many").first.click()
    page.get_by_role("link", name="its sweep").click()
    expect(page.locator("h1")).to_have_text("many")
    page.get_by_role("link", name="Train the best with twice the steps").click()
    expect(page.locator("#sizes")).to_contain_text("20 steps on 1 CPU process")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/jobs/job_"))
    job = client.job(page.url.rsplit("/", 1)[1])
    assert (job.name, job.spec["steps"]) == ("of-many-2", 20)
    client.cancel(job.id)


@pytest.mark.heavy
def test_a_failed_job_states_its_error_and_is_forked_with_the_fix(visit: Visit, client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    labels = {"revision": "0123456789" * 4}
    spec = {"name": "wrong-number", "task": "script", "argv": ["train.py", "--lr", "0,05"], "metadata": labels}
    failed = client.submit(spec, code=tmp_path).id
    wait_for_status(client, failed, "failed")
    page = visit.go("/jobs")
    page.get_by_label("Failed", exact=True).click()
    page.get_by_role("link", name="wrong-number").click()
    expect(page.locator("main")).to_contain_text("argument --lr: invalid float value: '0,05'")
    expect(page.get_by_text("revision: 012345678901234567890123…", exact=True)).to_be_visible()
    page.get_by_role("link", name="Fork with corrected code").click()
    expect(page.locator("#code-status")).to_have_text(
        "The job failed with this code. Upload the folder with the corrected code."
    )
    expect(page.get_by_role("button", name="Submit", exact=True)).not_to_have_class(re.compile("primary"))
    page.get_by_role("button", name="Submit", exact=True).click()
    dialog = page.get_by_role("dialog", name="Submit without a correction?")
    dialog.get_by_role("button", name="Back").click()
    area = page.locator("#spec")
    area.fill(area.input_value().replace("0,05", "0.05"))
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_class("primary")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/jobs/job_"))
    job = page.url.rsplit("/", 1)[1]
    assert page.url == client.job_url(job)
    origin = client.job(job).resource.metadata["forked_from"]
    expect(page.get_by_role("link", name=f"…{origin[-6:]}").first).to_have_attribute("href", f"/jobs/{origin}")
    assert wait_for_status(client, job, "succeeded", "failed").status == "succeeded"
