"""The model card: a header that YAML reads, and what the model was made of, without where the job ran."""

import math

import pytest
import yaml

from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.exported import ExportNote
from worker.export.card import BaseModelCard, license_of, model_card

HF = {"source": "hf", "path": "/secret/place/models/tiny-llama"}
METRICS = {"eval/loss": 0.25, "train/loss": 0.5, "eval/perplexity": math.nan}
SOURCES = {"data": "d" * 64, "data.shuffle": "e" * 64, "model.path": "f" * 64}


def spec_of(**changes):
    fields = {
        "name": "my `run` | <b>",
        "task": "causal_lm",
        "model": HF,
        "data": {"source": "jsonl", "path": "/secret/place/chats.jsonl"},
        "steps": 9,
        "environment": {"variables": {"INTERNAL": "hush"}},
        "resources": {"partition": "hidden"},
    }
    return parse_spec(fields | changes)


def card_of(spec, kind="model", base=None):
    note = ExportNote(kind=kind, task=spec.task, model=spec.model and spec.model.model_dump(), seed=1, step=9)
    return model_card(spec, note.model_copy(update={"base_digest": "f" * 64}), METRICS, SOURCES, base)


def header_of(card):
    _, text, _ = card.split("---\n", 2)
    return yaml.safe_load(text)


def test_header_has_what_model_hubs_read():
    base = BaseModelCard(license="apache-2.0", hub_name="meta/tiny")
    header = header_of(card_of(spec_of(lora_rank=2), "adapter", base))
    assert header["license"] == "apache-2.0"
    assert (header["library_name"], header["pipeline_tag"]) == ("peft", "text-generation")
    assert (header["base_model"], header["base_model_relation"]) == ("meta/tiny", "adapter")
    assert header["tags"] == ["trainyard", "lora"]
    (result,) = header["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "loss", "name": "eval/loss", "value": 0.25}]
    assert result["dataset"]["name"] == "chats.jsonl"


def test_licence_comes_from_the_spec_before_the_base_and_is_never_invented():
    labels = {"license": "other", "license_name": "mine", "team": "nlp"}
    header = header_of(card_of(spec_of(metadata=labels), base=BaseModelCard(license="mit")))
    assert (header["license"], header["license_name"], "team" in header) == ("other", "mine", False)
    assert header_of(card_of(spec_of()))["license"] == "unknown"


def test_card_names_data_and_base_by_digest_and_no_path_of_the_cluster():
    card = card_of(spec_of(), base=BaseModelCard())
    for text in ("chats.jsonl", "d" * 64, "tiny-llama", "f" * 64, '"steps": 9', "| `eval/loss` | 0.25 |"):
        assert text in card
    assert "hush" not in card
    assert "hidden" not in card
    assert "NaN" not in card.replace('"nan"', "")
    assert "# my \\`run\\` \\| \\<b\\>" in card


def test_card_states_the_type_of_the_exported_weights():
    note = ExportNote(kind="model", task="causal_lm", model=HF, seed=1, step=9, dtype="bf16")
    card = model_card(spec_of(), note, METRICS, SOURCES, None)
    assert "The weights are stored in bf16." in card
    assert "## Spec of the training\n" in card, "its `precision` is not that of the weights"


def test_digests_are_named_by_what_they_are_of():
    card = card_of(spec_of())
    assert f"* digest of the examples, as the model reads them: `{'d' * 64}`" in card
    assert f"* digest of the order of the examples: `{'e' * 64}`" in card
    assert f"whose folder has the digest `{'f' * 64}`" in card


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: mit\n---\n# x", "mit"),
        ('---\r\ntags: []\r\nlicense: "llama3.2"\r\n---\r\n', "llama3.2"),
        ("# x\nlicense: mit", None),
        ("---\nlicense:\n- mit\n---\n", None),
        ("---\nlicense: mit: [injected\n---\n", None),
        ("", None),
    ],
)
def test_licence_of_a_base_is_read_from_its_header_only(text, expected):
    assert license_of(text) == expected
