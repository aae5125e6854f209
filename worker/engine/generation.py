"""Generates texts from prompts with a model under any strategy, and stores them as an artifact."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.layout import write_atomic
from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.objectives import Samples
from trainyard.contract.spec.sections import HfModel
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.samples import Sample, SamplesRecord
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.tasks.text_codec import TextCodec, text_codec

_MULTIPLE = 64
"""Tokens to a multiple of which rows are padded, so that `torch.compile` sees few shapes. No token attends to
later tokens."""


@dataclass
class _Text:
    """A text that grows."""

    index: int
    tokens: list[int]
    """The tokens of the prompt and the generated tokens."""
    prompt: int
    """The number of tokens of the prompt."""
    limit: int
    """The number of tokens at which the text is cut."""
    random: random.Random
    ended: bool = False

    @property
    def done(self) -> bool:
        return self.ended or len(self.tokens) >= self.limit


@dataclass
class SampleGenerator:
    """Generates the samples of a run. Every call gives the same texts for the same weights.

    The tokens before are computed again for each new token. A rank generates its share of the prompts, and the ranks
    of a sharded model, whose forward is a collective, make the same number of forwards.
    """

    options: Samples
    codec: TextCodec
    seed: int
    _prompts: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Encode the prompts.

        Raises:
            RefusedError: A prompt is too long for the model.
        """
        self._prompts = [self.codec.encode(prompt, chat=self.options.chat) for prompt in self.options.prompts]
        for index, tokens in enumerate(self._prompts):
            if not tokens:
                raise RefusedError(f"evaluation.samples.prompts.{index}: has no token")
            if self.codec.context is not None and len(tokens) >= self.codec.context:
                raise RefusedError(
                    f"evaluation.samples.prompts.{index}: has {len(tokens)} tokens, and the model has "
                    f"{self.codec.context} for prompt and text",
                    "Shorten the prompt.",
                )

    @torch.no_grad()
    def generate(
        self,
        model: ParallelModel,
        precision: Precision,
        ranks: Ranks,
        progress: ProgressCounter,
        *,
        size: int,
        sharded: bool,
    ) -> list[Sample]:
        """Return the samples in the order of the prompts, on every rank. A collective.

        Args:
            size: Texts that a rank computes at once.
            sharded: Whether a forward is a collective.
        """
        model.module.eval()
        own = [self._begin(index) for index in range(ranks.rank, len(self._prompts), ranks.world)]
        most = -(-len(self._prompts) // ranks.world)
        for start in range(0, most, size):
            group = own[start : start + size]
            while _continues(group, ranks, sharded=sharded):
                progress.mark("sampling")
                self._extend(group or [self._begin(0)], model, precision, ranks.device)
        model.release()
        model.module.train()
        texts = json.dumps({text.index: self._sample(text).model_dump() for text in own})
        samples = {index: one for part in ranks.gather_text(texts) for index, one in json.loads(part).items()}
        return [Sample.model_validate(samples[str(index)]) for index in range(len(self._prompts))]

    def _begin(self, index: int) -> _Text:
        tokens = self._prompts[index]
        limit = len(tokens) + self.options.max_new_tokens
        limit = limit if self.codec.context is None else min(limit, self.codec.context)
        return _Text(index, list(tokens), len(tokens), limit, random.Random(f"{self.seed} {index}"))  # noqa: S311

    def _extend(self, texts: Sequence[_Text], model: ParallelModel, precision: Precision, device: torch.device) -> None:
        """Add a token to each text that is not done."""
        longest = max(len(text.tokens) for text in texts)
        width = max(longest, min(-(-longest // _MULTIPLE) * _MULTIPLE, self.codec.context or longest + _MULTIPLE))
        rows = [text.tokens + [0] * (width - len(text.tokens)) for text in texts]
        last = torch.tensor([len(text.tokens) - 1 for text in texts], device=device)
        with precision.autocast():
            logits = model.evaluation_module(torch.tensor(rows, device=device), last=last)
        for text, token in zip(texts, self._choose(logits.float(), texts), strict=True):
            if not text.done:
                text.ended = token in self.codec.ends
                text.tokens += [] if text.ended else [token]

    def _choose(self, logits: torch.Tensor, texts: Sequence[_Text]) -> list[int]:
        """Return the next token of each text from logits (texts, vocabulary)."""
        if not self.options.temperature:
            return [int(token) for token in logits.argmax(dim=-1).tolist()]
        sums = (logits / self.options.temperature).double().softmax(dim=-1).cumsum(dim=-1)
        draws = torch.tensor([[text.random.random()] for text in texts], dtype=torch.float64, device=sums.device)
        chosen = torch.searchsorted(sums, draws * sums[:, -1:], right=True).clamp(max=logits.shape[-1] - 1)
        return [int(token) for token in chosen[:, 0].tolist()]

    def _sample(self, text: _Text) -> Sample:
        generated = text.tokens[text.prompt :]
        return Sample(
            prompt=self.options.prompts[text.index],
            text=self.codec.decode(generated),
            tokens=len(generated),
            ended=text.ended,
        )


def build_generator(spec: TrainingSpec, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> SampleGenerator | None:
    """Return the generator of a spec's samples, or None if it has none.

    Raises:
        RefusedError: A prompt does not fit the model, or its tokenizer cannot be loaded.
    """
    options, model = spec.evaluation.samples, spec.model
    if options is None or not isinstance(model, HfModel | GptModel | LlamaModel):
        return None
    return SampleGenerator(options, text_codec(model, roots), spec.seed)


def _continues(group: Sequence[_Text], ranks: Ranks, *, sharded: bool) -> bool:
    unfinished = any(not text.done for text in group)
    return ranks.any(unfinished) if sharded else unfinished


def write_samples(folder: Path, step: int, samples: Sequence[Sample]) -> str:
    """Write the samples of a step, and return the name of the file."""
    name = f"step-{step:010d}.json"
    write_atomic(folder / name, SamplesRecord(step=step, samples=tuple(samples)).model_dump_json(indent=1))
    return name
