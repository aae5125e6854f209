"""Generated text is that of transformers, arrives in whole characters, and ends where the context ends."""

import pytest
import torch

import trainyard
from tests.support import hf
from tests.support.exports import make_export, spec_of, trained_module
from trainyard.contract.wire.generation import GenerationSettings
from trainyard.loading.generation import generate_text


@pytest.fixture(scope="module", params=["hf", "gpt", "llama"])
def loaded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    if request.param == "hf":
        return trainyard.load(hf.save_llama(folder / "llama", context=96))
    spec = spec_of(request.param, model_context=96)
    return trainyard.load(make_export(folder, spec, trained_module(spec)))


def generate(loaded, prompt, **settings):
    pieces = []
    done = generate_text(*loaded, prompt, GenerationSettings(**settings), pieces.append)
    assert "".join(pieces) == done.text
    return done, pieces


@pytest.mark.parametrize("prompt", ["def main(", "Größe 漢", "x"])
def test_greedy_text_is_that_of_transformers(loaded, prompt):
    model, tokenizer = loaded
    done, pieces = generate(loaded, prompt, max_new_tokens=40)
    given = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(**given, do_sample=False, max_new_tokens=40)[0, given["input_ids"].shape[1] :]
    assert done.text == tokenizer.decode(tokens, skip_special_tokens=True).removesuffix("\0")
    assert (done.new_tokens, done.prompt_tokens) == (len(tokens), given["input_ids"].shape[1])
    assert len(pieces) > 1


def test_samples_depend_on_the_seed_and_temperature(loaded):
    first, again, other = (
        generate(loaded, "def ", max_new_tokens=30, temperature=2.0, seed=seed)[0].text for seed in (1, 1, 2)
    )
    assert first == again != other


def test_text_ends_with_the_context(loaded):
    tokens = loaded.tokenizer("a b c d e f")["input_ids"]
    done, _ = generate(loaded, "a b c d e f", max_new_tokens=1000)
    assert done.finish == "stop" or done.new_tokens == 96 - len(tokens)
    with pytest.raises(trainyard.LoadError, match=r"the prompt has \d+ tokens, and the context of the model is 96"):
        generate(loaded, "漢 " * 96)


def test_prompt_without_tokens_is_refused(loaded):
    with pytest.raises(trainyard.LoadError, match="the prompt has no token"):
        generate(loaded, "")


class Script:
    """A model that says given tokens, with the parts that generation uses."""

    device = torch.device("cpu")

    def __init__(self, loaded, tokens):
        self.config, self.generation_config, self._tokens = loaded.model.config, loaded.model.generation_config, tokens
        self.requested = {}

    def generate(self, streamer, **options):
        self.requested = options
        streamer.put(options["input_ids"])
        for token in self._tokens:
            streamer.put(torch.tensor([token]))
        streamer.end()


def scripted(loaded, text, end=(), **settings):
    tokens = [*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], *end]
    model, pieces = Script(loaded, tokens), []
    done = generate_text(model, loaded.tokenizer, "x", GenerationSettings(**settings), pieces.append)
    return done, pieces, model


def test_characters_of_several_bytes_are_never_split(loaded):
    done, pieces, _ = scripted(loaded, "Größe 漢字 🙂.")
    assert "".join(pieces) == done.text == "Größe 漢字 🙂."
    assert not any("\ufffd" in chunk for chunk in pieces)


def test_unfinished_character_at_the_end_is_shown(loaded):
    tokens = loaded.tokenizer("a🙂", add_special_tokens=False)["input_ids"][:-1]
    model, pieces = Script(loaded, tokens), []
    done = generate_text(model, loaded.tokenizer, "x", GenerationSettings(), pieces.append)
    assert "".join(pieces) == done.text
    assert done.text[:1] == "a"


def test_end_token_stops_and_is_not_part_of_the_text(loaded):
    done, _, _ = scripted(loaded, "yes", end=[loaded.model.generation_config.eos_token_id])
    assert (done.text, done.finish) == ("yes", "stop")
    assert scripted(loaded, "yes")[0].finish == "length"


def test_chat_is_formatted_by_the_template(loaded):
    if not loaded.tokenizer.chat_template:
        with pytest.raises(trainyard.LoadError, match="has no chat template"):
            scripted(loaded, "yes", chat=True)
        return
    _, _, model = scripted(loaded, "yes", chat=True)
    assert loaded.tokenizer.decode(model.requested["input_ids"][0]) == "<|user|>x<|end|><|assistant|>"
