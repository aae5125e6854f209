"""The builtin GPT in Hugging Face form: the same logits, a tokenizer of bytes, and generation that ends."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

from tests.support.hf import texts
from trainyard.contract.spec.training_spec import parse_spec
from worker.export.model import save_model
from worker.tasks.gpt import Gpt

SIZES = {"name": "gpt", "layers": 2, "width": 32, "heads": 4, "context": 64}
TOKENS = torch.arange(48).view(2, 24) * 7 % 256


def exported(folder, **changes):
    """Return a model with strong weights, its spec, and the folder of its export."""
    spec = parse_spec(
        {
            "task": "causal_lm",
            "model": {"source": "builtin", **SIZES, **changes},
            "data": {"source": "builtin", "name": "stdlib"},
            "steps": 1,
        }
    )
    torch.manual_seed(3)
    model = Gpt(spec.model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter * 6 + 0.1 * torch.rand_like(parameter))
    save_model(folder, dict(model.named_parameters()), spec)
    return model, folder


@pytest.mark.parametrize("changes", [{"tied": True}, {"tied": False}, {"vocab": 300, "heads": 2}, {"dropout": 0.3}])
@torch.no_grad()
def test_export_computes_the_same_logits_in_transformers(tmp_path, changes):
    model, folder = exported(tmp_path, **changes)
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert type(loaded) is GPT2LMHeadModel
    assert not any(report.values()), report
    assert (loaded.eval()(input_ids=TOKENS).logits - model(TOKENS)).abs().max() <= 1e-5
    dropout = changes.get("dropout", 0)
    assert (loaded.config.attn_pdrop, loaded.config.resid_pdrop, loaded.config.embd_pdrop) == (dropout, dropout, 0)


@torch.no_grad()
def test_generate_continues_with_the_most_likely_bytes_until_the_end_token(tmp_path):
    model, folder = exported(tmp_path)
    tokenizer, loaded = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = "def f(x):"
    generated = loaded.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=40, do_sample=False)[
        0
    ].tolist()
    expected = list(prompt.encode())
    while len(expected) < len(prompt) + 40 and expected[-1] != 0:
        expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert generated == expected
    assert (loaded.generation_config.eos_token_id, loaded.generation_config.pad_token_id) == (0, 0)


def test_exported_tokenizer_encodes_bytes(tmp_path):
    _, folder = exported(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("a b\n\tc  d .", "Größe Ā 漢字 🙂", "".join(map(chr, range(1, 256))), texts(1)[0]["text"]):
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.model_max_length == json.loads((folder / "config.json").read_text())["n_positions"] == 64
