"""Learning from preferences: DPO, ORPO, KTO and SimPO with a language model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainyard.contract.spec.decoders import GptModel, LlamaModel
from trainyard.contract.spec.objective_rules import preference_beta
from trainyard.contract.spec.objectives import PAIRED, WITH_REFERENCE
from trainyard.contract.spec.sections import BuiltinData, HfModel
from trainyard.contract.spec.text_data import TextData, TextMixture, evaluation_set
from trainyard.contract.spec.text_sources import PAIR_FORMATS, PREFERENCE_FORMATS, TextSource
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.errors import RefusedError
from worker.data.answers import Answer, AnswerExamples, AnswerRows, answer_examples, pair_rows
from worker.data.builtin import load_stdlib, windows
from worker.data.examples import IGNORED_LABEL, Tensors
from worker.data.mixture import mixture_of
from worker.data.notices import Notice
from worker.data.preference_rows import LoadedAnswers, load_answers
from worker.data.read_limit import raise_refusals, refused_later
from worker.data.sampler import Indices
from worker.data.text_examples import DIRECT, DataAccess
from worker.data.tokenizers import ByteTokenizer, HfTokenizer, Tokenizer
from worker.tasks.builtin_models import build_builtin
from worker.tasks.causal_lm import CausalLm, row_length
from worker.tasks.cross_entropy import PER_ROW
from worker.tasks.preference_loss import Answers, dpo_losses, kto_losses, orpo_losses, simpo_losses

Sums = dict[str, torch.Tensor]

STDLIB_PAIRS = 1000
"""Pairs of the builtin data set, at most."""


class PreferenceTask(CausalLm):
    """The loss summed over pairs, or for KTO over answers; rewards and log-probabilities as metrics."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        examples: AnswerExamples,
        spec: TrainingSpec,
        notices: Sequence[Notice] = (),
    ) -> None:
        ones = np.ones(len(examples.desirable), dtype=np.int64)
        super().__init__(build, examples, ones, round(float(examples.token_counts.tokens.mean())))
        self.answers = examples
        """The examples."""
        self._objective, self._options, self._beta = spec.objective, spec.preference, preference_beta(spec)
        self._divergence: torch.Tensor | None = None
        self.needs_reference = self._objective in WITH_REFERENCE
        self.shares_mean = self._objective == "kto"
        self.notices = [*notices, *([examples.mixture.notice()] if examples.mixture else [])]

    def loss_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        return self.measured_loss(model, batch)[0]

    def measured_loss(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Sums]:
        losses, measured = self._paired(model, batch) if self._objective in PAIRED else self._labelled(model, batch)
        return losses.sum(), {name: values.detach().sum() for name, values in measured.items()}

    def evaluation_sums(self, model: nn.Module, batch: Tensors) -> Mapping[str, torch.Tensor]:
        loss, measured = self.measured_loss(model, batch)
        return {"eval/loss": loss, **{f"eval/{name}": value for name, value in measured.items()}}

    def metric_weight(self, name: str, indices: Indices) -> float:
        """Return the divisor of a measured sum over these examples; for a kind of answers, their number."""
        desirable = int(self.answers.desirable[indices].sum())
        if self.answers.paired or not name.endswith(("/chosen", "/rejected")):
            return float(len(indices))
        return float(desirable if name.endswith("/chosen") else len(indices) - desirable)

    def complete_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics with the margins: the differences of the mean rewards."""
        margins = {
            name.replace("rewards/chosen", "rewards/margins"): value - means[name.replace("chosen", "rejected", 1)]
            for name, value in means.items()
            if "/rewards/chosen" in name and name.replace("chosen", "rejected", 1) in means
        }
        return {**means, **margins}

    def reference_logps(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        return _log_probabilities(model, *batch)

    def shared_batch(self, batch: Indices, positions: Indices, device: torch.device) -> Tensors:
        """Return the prompts at these positions of a global batch with answers to other prompts, and the reference's
        log-probabilities."""
        assert self.answers.others is not None, "only answers with labels are compared with others"
        return self.answers.other_batch(self.answers.others.pairs_in(batch)[positions], device)

    def shared_sum(self, model: nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the summed log-ratios of answers to other prompts: fp32, shape ()."""
        *rows, reference = batch
        return (_log_probabilities(model, *rows) - reference).sum()

    def set_shared_mean(self, mean: torch.Tensor) -> None:
        """Set the mean of these log-ratios over the batch, from which KTO's loss takes its zero: fp32, shape ()."""
        self._divergence = mean.clamp(min=0)

    def _paired(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Sums]:
        tokens, labels, reference = batch
        logps, lengths = _log_probabilities(model, tokens, labels).chunk(2), _lengths(labels).chunk(2)
        chosen, rejected = (Answers(logps[which], lengths[which], reference[:, which]) for which in (0, 1))
        match self._objective:
            case "dpo":
                losses = dpo_losses(chosen, rejected, self._options, self._beta)
            case "orpo":
                losses = orpo_losses(chosen, rejected, self._beta)
            case _:
                losses = simpo_losses(chosen, rejected, self._options, self._beta)
        first, second = self._rewards(chosen), self._rewards(rejected)
        return losses, {
            "rewards/chosen": first,
            "rewards/rejected": second,
            "rewards/accuracies": (first > second).float(),
            "logps/chosen": logps[0],
            "logps/rejected": logps[1],
        }

    def _labelled(self, model: nn.Module, batch: Tensors) -> tuple[torch.Tensor, Sums]:
        tokens, labels, reference, desirable = batch
        answers = Answers(_log_probabilities(model, tokens, labels), _lengths(labels), reference[:, 0])
        divergence = torch.zeros((), device=tokens.device) if self._divergence is None else self._divergence
        losses = kto_losses(answers, desirable, divergence, self._options, self._beta)
        rewards, zero = self._rewards(answers), torch.zeros_like(answers.logps)
        above = answers.ratios > divergence
        return losses, {
            "rewards/chosen": torch.where(desirable, rewards, zero),
            "rewards/rejected": torch.where(desirable, zero, rewards),
            "rewards/accuracies": (above == desirable).float(),
            "logps/chosen": torch.where(desirable, answers.logps, zero),
            "logps/rejected": torch.where(desirable, zero, answers.logps),
            "kl": divergence.expand(len(rewards)),
        }

    def _rewards(self, answers: Answers) -> torch.Tensor:
        """Return the rewards that the objective implies: beta log p / r, or without a reference beta times the mean
        log-probability of a token."""
        return self._beta * (answers.ratios if self.needs_reference else answers.mean_logps)


def _log_probabilities(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses: torch.Tensor = model(tokens, labels, None, PER_ROW)
    return -losses


def _lengths(labels: torch.Tensor) -> torch.Tensor:
    return (labels != IGNORED_LABEL).sum(dim=1)


def build_preference_task(
    spec: TrainingSpec, data: TextData | BuiltinData, access: DataAccess = DIRECT, *, row_multiple: int = 1
) -> PreferenceTask:
    """Return the task of a spec whose objective learns from preferences; `row_multiple`: see `RowExamples.multiple`."""
    match spec.model:
        case HfModel() as model if isinstance(data, TextData):
            from worker.tasks.hf_model import HfFolder

            folder = HfFolder(model.path, access.roots)
            build, tokenizer = partial(folder.load, packed=False), HfTokenizer(folder.tokenizer)
            examples, notices = _load(spec, data, tokenizer, folder.context, access, row_multiple)
            task = PreferenceTask(build, examples, spec, notices)
            task.defer = lambda: folder.defer(packed=False)
            return task
        case (GptModel() | LlamaModel()) as decoder:
            if isinstance(data, BuiltinData):
                examples, notices = stdlib_pairs(data, decoder.context), []
            else:
                examples, notices = _load(spec, data, ByteTokenizer(), decoder.context, access, row_multiple)
            return PreferenceTask(lambda: build_builtin(decoder), examples, spec, notices)
    raise RefusedError(f"this worker cannot train that model by objective `{spec.objective}`")


def stdlib_pairs(data: BuiltinData, context: int) -> AnswerExamples:
    """Return pairs from Python's standard library: after the first half of a passage, its second half is preferred to
    the same in upper case. Passages have `context` bytes and are spread evenly over the files."""
    passages = windows(load_stdlib(), context).numpy()
    numbers = np.linspace(0, len(passages) - 1, min(STDLIB_PAIRS, len(passages)), dtype=np.int64)
    pairs = []
    for passage in passages[numbers]:
        prompt, answer = passage[: context // 2], passage[context // 2 :]
        upper = np.frombuffer(answer.tobytes().upper(), dtype=np.uint8)
        pairs.append((_answer(prompt, answer), _answer(prompt, upper)))
    train = len(pairs) - round(len(pairs) * data.eval_fraction)
    held_out = {"": pair_rows(pairs[train:], context)} if train < len(pairs) else {}
    return answer_examples([pair_rows(pairs[:train], context)], held_out, paired=True, context=context)


def _answer(prompt: NDArray[np.uint8], answer: NDArray[np.uint8]) -> Answer:
    return Answer(prompt.astype(np.int32), answer.astype(np.int32))


def _load(
    spec: TrainingSpec, data: TextData, tokenizer: Tokenizer, context: int | None, access: DataAccess, multiple: int
) -> tuple[AnswerExamples, list[Notice]]:
    paired = spec.objective in PAIRED
    known = sorted(PAIR_FORMATS if paired else PREFERENCE_FORMATS - PAIR_FORMATS, reverse=True)
    length = row_length(data.max_length, context)
    max_bad = data.max_bad_lines if data.on_bad_line == "skip" else 0

    notices: list[Notice] = []

    def load(section: str, source: TextSource, fraction: float = 0.0) -> LoadedAnswers:
        formats = known if source.format == "auto" else [source.format]
        loaded = load_answers(section, source, formats, tokenizer, length, access, max_bad=max_bad, fraction=fraction)
        notices.extend(loaded.notices)
        return loaded

    names = data.names if isinstance(data, TextMixture) else ("",)
    train: list[AnswerRows] = []
    held_out: dict[str, AnswerRows] = {}
    for name, (section, source) in zip(names, data.training_sources.items(), strict=True):
        with refused_later(access.limit):
            loaded = load(section, source, data.eval_fraction)
            train.append(loaded.train)
            if data.eval_fraction:
                held_out[name] = loaded.held_out
    for section, source in data.evaluation_sources.items():
        with refused_later(access.limit):
            held_out[evaluation_set(section)] = load(section, source).train
    raise_refusals(access.limit)
    mixture = mixture_of(data, [len(rows) for rows in train])
    examples = answer_examples(
        train, held_out, paired=paired, length=length, multiple=multiple, context=context, mixture=mixture
    )
    return examples, notices
