"""What ends a turn ends generated text: a template ends turns in `<|im_end|>`, the tokenizer ends texts in `<eos>`."""

import json
import shutil

import pytest
import torch
from transformers import AutoConfig, GenerationConfig

import trainyard
from tests.support import hf
from tests.support.chat_templates import tokenizer_for
from tests.support.exports import hf_spec, make_export, trained_module
from trainyard.contract.wire.generation import GenerationSettings
from trainyard.loading.generation import generate_text
from trainyard.loading.turn_end import end_tokens
from worker.tasks.text_codec import HfCodec, text_codec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    made = tokenizer_for(CHATML)
    made.chat_template = CHATML
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    path = hf.save_llama(tmp_path_factory.mktemp("base") / "base", vocabulary=500)
    tokenizer.save_pretrained(path)
    config = AutoConfig.from_pretrained(path)
    config.eos_token_id = tokenizer.eos_token_id
    config.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    return path


@pytest.fixture(scope="module")
def ends(tokenizer):
    return [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_samples_end_with_the_turn_and_with_the_end_token(folder, ends):
    codec = text_codec(hf_spec(folder).model)
    assert codec.ends == set(ends)


def test_turn_end_that_a_prompt_ends_with_is_retained(folder, tokenizer, ends):
    codec = HfCodec(tokenizer, AutoConfig.from_pretrained(folder), 64)
    assert codec.encode("Hi<|im_end|>", chat=False)[-1] == ends[1]


def test_named_ends_come_first_and_once(tokenizer, ends):
    assert end_tokens(tokenizer, [7, ends[1]], None, 9) == [7, ends[1], 9, ends[0]]


class TestExports:
    @pytest.mark.parametrize("lora", [{}, {"lora_rank": 2}, {"lora_rank": 2, "lora": {"merge": True}}])
    def test_generation_config_has_both_ends(self, folder, tmp_path, ends, lora):
        spec = hf_spec(folder, **lora)
        export = make_export(tmp_path, spec, trained_module(spec))
        assert GenerationConfig.from_pretrained(export).eos_token_id == ends

    def test_settings_of_the_base_are_retained(self, folder, tmp_path, ends):
        base = shutil.copytree(folder, tmp_path / "base")
        (base / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [7, ends[0]], "do_sample": True, "temperature": 0.6})
        )
        spec = hf_spec(base)
        settings = GenerationConfig.from_pretrained(make_export(tmp_path, spec, trained_module(spec)))
        assert (settings.eos_token_id, settings.temperature) == ([7, *ends], 0.6)

    def test_base_whose_only_end_is_the_end_token_has_one(self, tmp_path):
        base = hf.save_llama(tmp_path / "base")
        spec = hf_spec(base)
        settings = GenerationConfig.from_pretrained(make_export(tmp_path, spec, trained_module(spec)))
        assert settings.eos_token_id == 0


def generated(model, tokenizer, end):
    """Return the end of an answer of a model that finds one token always the most likely."""
    head = torch.nn.Linear(64, 500)
    torch.nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(torch.nn.functional.one_hot(torch.tensor(end), 500).float())
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    inner.lm_head = head
    done = generate_text(model, tokenizer, "Hi", GenerationSettings(max_new_tokens=8, chat=True), lambda text: None)
    return done.finish, done.new_tokens, done.text


class TestGenerate:
    @pytest.mark.parametrize("which", [0, 1])
    def test_model_of_others_stops(self, folder, ends, which):
        model, tokenizer = trainyard.load(folder)
        assert generated(model, tokenizer, ends[which]) == ("stop", 1, "")

    def test_adapters_stop(self, folder, tmp_path, ends):
        spec = hf_spec(folder, lora_rank=2)
        model, tokenizer = trainyard.load(make_export(tmp_path, spec, trained_module(spec)))
        assert generated(model, tokenizer, ends[1]) == ("stop", 1, "")

    def test_adapters_of_others_stop(self, folder, tmp_path, ends):
        from peft import LoraConfig, get_peft_model

        base, _ = trainyard.load(folder)
        adapters = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
        adapters.save_pretrained(tmp_path / "adapters")
        model, tokenizer = trainyard.load(tmp_path / "adapters", base=folder)
        assert generated(model, tokenizer, ends[1]) == ("stop", 1, "")

    def test_other_tokens_do_not_stop(self, folder, tokenizer):
        model, tokenizer = trainyard.load(folder)
        assert generated(model, tokenizer, tokenizer.convert_tokens_to_ids("h"))[:2] == ("length", 8)
