"""Jobs that a browser submits or shows, with real programs."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from trainyard.client import Client

pytestmark = [pytest.mark.web]


@pytest.mark.heavy
def test_error_of_the_program_has_its_line_its_output_and_a_fork_for_code(
    visit: Visit, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("print('the cache is old', flush=True)\ntable = {}\ntable['hot']\n")
    script = {"task": "script", "argv": ["broken.py"]}
    job = client.submit({**script, "name": "broken-code"}, code=tmp_path)
    wait_for_status(client, job.id, "failed")
    page = visit.go(f"/jobs/{job.id}")
    expect(page.locator("#failure-place")).to_have_text("broken.py, line 3, in <module>")
    expect(page.locator("#failure-lines")).to_contain_text("the cache is old")
    expect(page.locator("#failure-lines")).not_to_contain_text("KeyError")
    page.get_by_role("link", name="Fork with corrected code").click()
    expect(page.locator("#editor textarea")).to_have_value(re.compile("name: broken-code-2"))


@pytest.mark.heavy
def test_preset_with_custom_code_is_uploaded_and_runs(visit: Visit) -> None:
    page = visit.go("/submit?preset=custom_spirals")
    expect(page.locator("#code-status")).to_have_text("Upload the folder that contains spirals.py.")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="Submit without spirals.py?")).to_be_visible()
    page.get_by_role("button", name="Back").click()
    page.get_by_role("button", name="Upload the preset").click()
    expect(page.locator("#code-status")).to_contain_text("Code uploaded: sha256:")
    assert re.search(r"^code: .sha256:[0-9a-f]{64}", page.locator("#spec").input_value(), re.M)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/jobs/job_"))
    expect(page.locator("#fact-loss")).to_have_text(re.compile(r"\d"), timeout=90_000)
    expect(page.locator("#status")).to_have_text("succeeded", timeout=90_000)
