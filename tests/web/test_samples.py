"""The samples of a job on its page."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from trainyard.client import Client
from trainyard.contract.wire.samples import Sample, SamplesRecord

pytestmark = [pytest.mark.web]

PROMPT = "import <b>this</b> as "
PROMPTS = [PROMPT, "x"]
SPEC: dict[str, Any] = {
    "task": "causal_lm",
    "gpus": 1,
    "model": {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 40, "vocab": 256},
    "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
    "steps": 4,
    "batch": {"size": 4},
    "evaluation": {"every_steps": 2, "first": True, "samples": {"prompts": PROMPTS, "max_new_tokens": 5}},
}


@pytest.fixture(scope="module")
def sampled_job(service: LiveService, client: Client) -> Any:
    job = client.submit({**SPEC, "name": "sampled"})
    worker = service.start(job.id)
    worker.run.samples.mkdir(parents=True)
    for step in (0, 2, 4):
        samples = tuple(Sample(prompt=prompt, text=f"sys {step}", tokens=5, ended=False) for prompt in PROMPTS)
        file = worker.run.samples / f"step-{step:010d}.json"
        file.write_text(SamplesRecord(step=step, samples=samples).model_dump_json())
    worker.end("completed", step=4)
    wait_for_status(client, job.id, "succeeded")
    return job


def test_last_texts_are_shown_and_earlier_ones_can_be_chosen(visit: Visit, client: Client, sampled_job: Any) -> None:
    page = visit.go(f"/jobs/{sampled_job.id}?tab=media")
    texts = page.locator("#samples-list pre")
    expect(texts).to_have_count(2)
    for step in (4, 0):
        page.locator("#samples-step").select_option(str(step))
        for number, sample in enumerate(client.samples(sampled_job.id, step).samples):
            expect(texts.nth(number)).to_have_text(sample.prompt + sample.text, use_inner_text=False)
    expect(texts.nth(0).locator(".prompt")).to_have_text(PROMPT)


def test_job_without_samples_has_no_section(visit: Visit, running_job: Any) -> None:
    page = visit.go(f"/jobs/{running_job.id}")
    expect(page.locator("#log")).not_to_be_empty()
    page.get_by_role("tab", name="Media").click()
    expect(page.locator("#samples")).to_be_hidden()
