"""Prompts of samples that do not fit the model, and drawing of tokens."""

from types import SimpleNamespace

import pytest
import torch

from tests.support.ranks import single_rank
from trainyard.contract.spec.objectives import Samples
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.progress_file import ProgressCounter
from worker.core.errors import RefusedError
from worker.engine.generation import SampleGenerator
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.tasks.text_codec import ByteCodec, HfCodec

CPU = torch.device("cpu")


class Fixed(torch.nn.Module):
    """Always gives the same logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, tokens, *, last):
        assert (last < tokens.shape[1]).all()
        return self.logits.expand(len(tokens), -1)


def generate(logits, *, prompts=("a",), seed=0, size=4, **options):
    model = Fixed(logits)
    precision = Precision(
        "fp32", parse_spec({"task": "script", "argv": ["x.py"], "code": "sha256:" + "0" * 64}).amp, CPU
    )
    generator = SampleGenerator(Samples(prompts=prompts, **options), ByteCodec(300), seed)
    return generator.generate(
        ParallelModel(model, model), precision, single_rank(), ProgressCounter(), size=size, sharded=False
    )


class TestDrawing:
    def test_temperature_zero_takes_the_most_probable_token(self):
        logits = [0.0] * 256
        logits[ord("z")] = 1.0
        (sample,) = generate(logits, max_new_tokens=3)
        assert (sample.text, sample.tokens, sample.ended) == ("zzz", 3, False)

    def test_end_token_ends_the_text(self):
        (sample,) = generate([1.0] + [0.0] * 255, max_new_tokens=3)
        assert (sample.text, sample.tokens, sample.ended) == ("", 0, True)

    def test_tokens_are_drawn_by_their_probability(self):
        logits = [-1e9] * 256
        logits[ord("p")], logits[ord("q")] = 0.0, 2.0
        (sample,) = generate(logits, max_new_tokens=200, temperature=2.0)
        share = 1 / (1 + torch.tensor(-1.0).exp().item())
        assert set(sample.text) == {"p", "q"}
        assert sample.text.count("q") / 200 == pytest.approx(share, abs=0.1)

    def test_draws_depend_on_seed_and_prompt_alone(self):
        logits = [0.0] * 256
        first = generate(logits, prompts=("a", "a", "b"), max_new_tokens=20, temperature=1.0)
        again = generate(logits, prompts=("a", "a", "b"), max_new_tokens=20, temperature=1.0, size=1)
        other = generate(logits, prompts=("a", "a", "b"), max_new_tokens=20, temperature=1.0, seed=1)
        assert first == again
        assert first[0].text != first[1].text
        assert first != other


class TestRefusals:
    def test_prompt_that_fills_the_context(self):
        with pytest.raises(RefusedError, match=r"evaluation.samples.prompts.1: has 5 tokens, and the model has 4"):
            SampleGenerator(Samples(prompts=("abc", "abcde")), ByteCodec(4), 0)

    def test_chat_without_a_template(self):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(eos_token_id=[1, 2]))
        codec = HfCodec(SimpleNamespace(chat_template=None, eos_token_id=3), config, None)
        assert codec.ends == {1, 2, 3}
        with pytest.raises(RefusedError, match=r"evaluation.samples.chat: the model's tokenizer has no chat template"):
            SampleGenerator(Samples(prompts=("abc",), chat=True), codec, 0)

    def test_bytes_that_are_no_text_are_replaced(self):
        assert ByteCodec(4).decode([65, 255, 256]) == "A\ufffd?"
