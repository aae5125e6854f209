"""What a program reports about itself, on the page of its job."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from trainyard.client import Client

pytestmark = [pytest.mark.web]

MARKUP = "<img src=x onerror=alert(1)>"
PROGRAM = """
import os, time, mlflow
while not os.path.exists({mark!r}):
    time.sleep(0.05)
with mlflow.start_run():
    mlflow.log_params({{"lr": 3e-4, "note": {markup!r}}})
    mlflow.set_tag("team", "nlp")
    mlflow.set_tag("mlflow.note.content", {markup!r})
    mlflow.log_metric("loss", 1.0, step=1)
    while os.path.exists({mark!r}):
        time.sleep(0.05)
"""


@pytest.mark.heavy
def test_parameters_appear_on_an_open_page_as_text(visit: Visit, client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM.format(mark=str(mark), markup=MARKUP))
    job = client.submit({"name": "described", "task": "script", "argv": ["train.py"]}, code=code)
    page = visit.go(f"/jobs/{job.id}")
    expect(page.locator("#parameters")).to_have_attribute("hidden", "")
    expect(page.locator("#no-metrics")).to_be_visible(timeout=60_000)
    mark.touch()
    expect(page.locator("#parameters")).not_to_have_attribute("hidden", "", timeout=60_000)
    expect(page.locator("#no-metrics")).to_be_hidden()
    page.get_by_role("tab", name="Spec & code").click()
    for _ in range(2):
        rows = page.locator("#parameters tbody tr")
        expect(rows).to_have_text(["lr0.0003", f"note{MARKUP}", "team (tag)nlp"])
        expect(page.locator("#notes")).to_have_text(MARKUP)
        page.reload()
    mark.unlink()
