"""The pages of registered models, and the box on a job's page that says how its model is used."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.accessibility import assert_accessible
from tests.support.browser import Visit
from tests.support.live import wait_for_status
from tests.support.live_service import LiveService
from tests.web.specs import SPEC
from trainyard.client import Client

pytestmark = [pytest.mark.web]

HF = {"source": "hf", "path": "/models/it's llama"}
JOB: dict[str, Any] = {"id": "job_1", "name": "chat", "status": "succeeded", "last_checkpoint_step": 9}


@pytest.fixture(scope="module")
def trained(service: LiveService, client: Client) -> Any:
    """A job that has succeeded, with one registered version, whose description looks like markup."""
    job = client.submit({**SPEC, "name": "usable"})
    service.train(job.id)
    wait_for_status(client, job.id, "succeeded")
    client.register_model("web-model", job.id, aliases=["prod"], description="<b>bold</b>")
    return job


@pytest.fixture
def uses_of(module: Callable[[str], Callable[..., Any]]) -> Callable[..., dict[str, str]]:
    """The lines that a job's page would show, by title."""

    def uses(spec: dict[str, Any], **changes: Any) -> dict[str, str]:
        job = {**JOB, "spec": {"checkpoint": {"export": True}, "task": "causal_lm", **spec}, **changes}
        return {one["title"]: one["code"] for one in module("model_use.js")("usesOf", job)}

    return uses


class TestUses:
    def test_whole_model_of_a_folder(self, uses_of: Callable[..., dict[str, str]]) -> None:
        uses = uses_of({"model": HF})
        assert list(uses) == ["Python", "Generate text", "transformers", "vLLM", "Register"]
        assert 'model, tokenizer = trainyard.load("job_1")' in uses["Python"]
        assert uses["vLLM"] == "trainyard download job_1 --to ./export\nvllm serve ./export"

    def test_adapters_name_their_base_quoted(self, uses_of: Callable[..., dict[str, str]]) -> None:
        uses = uses_of({"model": HF, "lora_rank": 4, "lora": {"merge": False}}, name="a b")
        assert list(uses) == ["Python", "Generate text", "peft", "vLLM", "Register"]
        assert 'from_pretrained("/models/it\'s llama")' in uses["peft"]
        assert r"vllm serve '/models/it'\''s llama' --enable-lora --max-lora-rank 4" in uses["vLLM"]
        assert uses["vLLM"].endswith("--lora-modules 'a b=./export'")
        assert "transformers" in uses_of({"model": HF, "lora_rank": 4, "lora": {"merge": True}})

    def test_builtin_models(self, uses_of: Callable[..., dict[str, str]]) -> None:
        gpt = {"source": "builtin", "name": "gpt"}
        assert list(uses_of({"model": gpt})) == ["Python", "Generate text", "transformers", "Register"]
        assert list(uses_of({"model": gpt, "lora_rank": 2, "lora": {}})) == ["Python", "Generate text", "Register"]
        digits = uses_of({"task": "image_classification", "model": {"source": "builtin", "name": "convnet"}})
        assert list(digits) == ["Python", "Register"]
        assert 'model, transform = trainyard.load("job_1")' in digits["Python"]

    def test_classifiers_of_texts_without_export_have_a_checkpoint(
        self, uses_of: Callable[..., dict[str, str]]
    ) -> None:
        uses = uses_of({"task": "sequence_classification", "model": HF})
        assert list(uses) == ["Python", "Register"]
        assert 'model, tokenizer = trainyard.load("job_1")' in uses["Python"]
        saved = uses_of({"task": "sequence_classification", "model": HF}, status="cancelled")
        assert 'trainyard.load("job_1", checkpoint="latest")' in saved["Python"]

    def test_classifiers_of_images_without_export_have_a_checkpoint(
        self, uses_of: Callable[..., dict[str, str]]
    ) -> None:
        spec = {"task": "image_classification", "model": HF, "data": {"source": "images"}}
        uses = uses_of(spec)
        assert list(uses) == ["Python", "Register"]
        assert 'model, transform = trainyard.load("job_1")' in uses["Python"]
        assert list(uses_of(spec, status="cancelled")) == ["Python", "Register"]

    def test_embedding_models_are_used_here_and_by_sentence_transformers(
        self, uses_of: Callable[..., dict[str, str]]
    ) -> None:
        uses = uses_of({"task": "text_embedding", "model": HF})
        assert list(uses) == ["Python", "sentence-transformers", "Register"]
        assert "model.encode" in uses["Python"]
        assert list(uses_of({"task": "text_embedding", "model": HF}, status="cancelled")) == ["Python", "Register"]

    def test_job_without_an_export_has_its_newest_checkpoint(self, uses_of: Callable[..., dict[str, str]]) -> None:
        uses = uses_of({"model": HF}, status="cancelled")
        assert list(uses) == ["Python", "Generate text", "Register"]
        assert all("latest" in code for code in uses.values())

    def test_job_without_a_model_has_none(self, uses_of: Callable[..., dict[str, str]]) -> None:
        assert uses_of({"task": "script", "model": None, "checkpoint": None}) == {}
        assert uses_of({"task": "custom", "model": None}) == {}
        assert uses_of({"model": HF}, status="running") == {}
        assert uses_of({"model": HF}, status="failed", last_checkpoint_step=None) == {}


def test_lines_of_a_finished_job_are_copied(visit: Visit, trained: Any) -> None:
    page = visit.go(f"/jobs/{trained.id}")
    box = page.locator("#use-model")
    expect(box.locator("h3")).to_have_text(["Python", "Register"])
    box.get_by_role("button", name="Copy the lines for Python").click()
    expect(box.get_by_role("button").first).to_have_text("Copied")
    assert f'trainyard.load("{trained.id}")' in box.locator("pre").first.inner_text()


def test_registered_models_lead_to_their_versions_and_jobs(visit: Visit, trained: Any) -> None:
    page = visit.go("/models")
    row = page.locator("#models tbody tr", has_text="web-model")
    expect(row).to_contain_text("prod 1")
    expect(row).to_contain_text("<b>bold</b>")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("web-model")
    version = page.locator("#versions tbody tr")
    expect(version).to_contain_text("export")
    assert_accessible(page)
    assert 'trainyard.load("web-model@latest")' in page.locator("#load").inner_text()
    version.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("usable")


def test_pages_of_models_fit_a_narrow_screen(visit: Visit, trained: Any) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/models", "/models/web-model", f"/jobs/{trained.id}"):
        page = visit.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
