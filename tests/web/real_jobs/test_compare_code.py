"""Which lines differ between the code of two jobs, found from the table of jobs."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.support.live import wait_for_status
from trainyard.client import Client

pytestmark = [pytest.mark.web]

PROGRAM = """
from trainyard.script import report

RATE = {rate}
for step in range(1, 4):
    report(step, {{"loss": 1 - RATE * step}})
"""


@pytest.mark.heavy
def test_code_of_two_jobs_is_compared(visit: Visit, client: Client, tmp_path: Path) -> None:
    for rate in (0.1, 0.2):
        code = tmp_path / str(rate)
        code.mkdir()
        (code / "train.py").write_text(PROGRAM.format(rate=rate))
        job = client.submit({"name": f"coded-{rate}", "task": "script", "argv": ["train.py"]}, code=code)
        wait_for_status(client, job.id, "succeeded", seconds=100)
    page = visit.go("/jobs")
    page.get_by_placeholder("Search names").fill("coded-")
    boxes = page.locator("#rows tr.job input[type=checkbox]")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        box.click()
    page.locator("#compare").click()
    diff = page.locator("#code-diff")
    expect(diff).to_contain_text("-RATE = 0.1")
    expect(diff).to_contain_text("+RATE = 0.2")
    expect(page.locator("#runs td", has_text="sha256:")).to_have_count(2)
    assert_accessible(page)
    visit.assert_clean()
