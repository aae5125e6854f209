"""What a job learns of its data, on its page."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from tests.web.test_samples import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202eabc\t</span>"
ACCOUNT: dict[str, Any] = {
    "section": "data.path",
    "format": "chat",
    "records": 3,
    "examples": 2,
    "tokens": 900,
    "learned_tokens": 30,
    "summary": ["read 3 records: 2 examples of format chat", "tokens learned: 30 of 900 (3.3%)"],
    "shown": [
        {
            "number": 2,
            "texts": [
                {
                    "name": "text",
                    "parts": [
                        {"text": "Question "},
                        {"text": "", "omitted_tokens": 1200},
                        {"text": HOSTILE, "learned": True},
                    ],
                    "tokens": 900,
                    "learned_tokens": 30,
                }
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def accounted_job(service: LiveService, client: Client) -> Any:
    job = client.submit({**SPEC, "name": "accounted"})
    worker = service.start(job.id)
    worker.event("data_account", 1, **ACCOUNT)
    worker.end("completed", step=4)
    wait_for_status(client, job.id, "succeeded")
    return job


def test_examples_are_shown_with_learned_parts_and_escapes(visit: Visit, client: Client, accounted_job: Any) -> None:
    page = visit.go(f"/jobs/{accounted_job.id}?tab=spec")
    text = page.locator("#data-accounts pre")
    expect(page.locator("#data-accounts li")).to_have_text(ACCOUNT["summary"])
    expect(page.locator("#data-accounts figcaption")).to_have_text("Example 2 of 2, 30 of 900 tokens learned")
    expect(text.locator("mark")).to_have_text(
        "learned: <img src=x onerror=alert(1)>\\x1b[31m\\u202eabc\\t</span> end of learned", use_inner_text=False
    )
    expect(text.locator(".omitted")).to_contain_text("1\u202f200 tokens")
    expect(text.locator("img")).to_have_count(0)
    assert text.locator("mark").evaluate("(mark) => getComputedStyle(mark).textDecorationLine") == "underline"
    assert_accessible(page, "#data-account")


def test_job_without_an_account_has_no_section(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}")
    expect(page.locator("#log")).not_to_be_empty()
    page.get_by_role("tab", name="Spec & code").click()
    expect(page.locator("#data-account")).to_be_hidden()
