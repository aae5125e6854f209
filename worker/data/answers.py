"""Examples with a chosen and a rejected answer each, or with a labelled answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.examples import Examples, Tensors, TokenCounts
from worker.data.mixture import Mixture
from worker.data.other_answers import OtherReference, Pairs, PromptsAndAnswers
from worker.data.sampler import Indices
from worker.data.token_lists import TokenLists
from worker.data.token_rows import RowExamples, Segment, TokenRows, build_token_rows, concatenate_rows


@dataclass(frozen=True)
class Answer:
    """The tokens of a prompt and of an answer to it."""

    prompt: NDArray[np.int32]
    """Shape (tokens of the prompt,)."""
    answer: NDArray[np.int32]
    """Shape (tokens of the answer,), its end token included."""

    @property
    def size(self) -> int:
        """The tokens of both."""
        return len(self.prompt) + len(self.answer)

    def segment(self, length: int) -> Segment:
        """Return both as a segment whose targets are the answer, cut after `length` tokens."""
        tokens = np.concatenate([self.prompt, self.answer])[:length]
        targets = np.arange(len(tokens)) >= len(self.prompt)
        # Without a prompt, no token precedes the first token.
        targets[:1] = False
        return Segment(tokens, targets)


@dataclass(frozen=True)
class AnswerRows:
    """The rows of a data set: pair i has the rows 2 i and 2 i + 1, the labelled answer i has row i."""

    rows: TokenRows
    desirable: NDArray[np.bool_]
    """Shape (examples,): whether the first answer is desirable; true for all pairs."""
    parts: PromptsAndAnswers | None = None
    """Labelled answers and their prompts, stored separately. No answer is longer than a row; None for pairs."""

    def __len__(self) -> int:
        return len(self.desirable)


def pair_rows(pairs: Sequence[tuple[Answer, Answer]], length: int) -> AnswerRows:
    """Return the rows of pairs of a chosen and a rejected answer.

    A pair is left out if one of its answers has no token within `length`.
    """
    cut = [(chosen.segment(length), rejected.segment(length)) for chosen, rejected in pairs]
    rows = [[segment] for pair in cut if all(one.targets.any() for one in pair) for segment in pair]
    return AnswerRows(_build(rows), np.ones(len(rows) // 2, dtype=np.bool_))


def are_equal(chosen: Answer, rejected: Answer, length: int) -> bool:
    """Return whether two answers are the same within `length` tokens, so that no preference can be learned of them."""
    first, second = chosen.segment(length), rejected.segment(length)
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.targets, second.targets)


def labelled_rows(answers: Sequence[Answer], desirable: Sequence[bool], length: int) -> AnswerRows:
    """Return the rows of labelled answers; an answer without a token within `length` is left out."""
    usable = [number for number, one in enumerate(answers) if one.segment(length).targets.any()]
    answers, labels = [answers[number] for number in usable], [desirable[number] for number in usable]
    prompts = TokenLists.of([one.prompt for one in answers], 0)
    parts = PromptsAndAnswers(prompts, TokenLists.of([one.answer[:length] for one in answers], 0))
    return AnswerRows(_build([[one.segment(length)] for one in answers]), np.array(labels, dtype=np.bool_), parts)


def _build(rows: list[list[Segment]]) -> TokenRows:
    if rows:
        return build_token_rows(rows)
    none = np.zeros(0, dtype=np.int32)
    return TokenRows(none, none.astype(np.bool_), none, none.astype(np.int64))


@dataclass(frozen=True)
class AnswerExamples(Examples):
    """Examples with one or two answers each, and their log-probabilities under the reference model.

    The sequences that the reference reads are numbered: first all rows, then the pairs of prompts and other answers.
    """

    answers: RowExamples
    """All rows; not packed."""
    desirable: NDArray[np.bool_] = field(kw_only=True)
    """Shape (examples,)."""
    paired: bool = field(kw_only=True)
    """Whether an example is a chosen and a rejected answer; otherwise it is a labelled answer."""
    reference: NDArray[np.float32] = field(kw_only=True)
    """The reference's log-probabilities of the rows of each example, shape (examples, 2) or (examples, 1). The engine
    writes them before the first step; zeros until then."""
    length: int = field(default=0, kw_only=True)
    """The tokens of a row at most."""
    others: PromptsAndAnswers | None = field(default=None, kw_only=True)
    """Labelled answers and their prompts, to put an answer after the prompt of another example."""
    other_reference: OtherReference = field(default_factory=OtherReference, kw_only=True)
    """The reference's log-probabilities of answers after other prompts; as `reference`."""

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens with a gradient, by example. An answer after another prompt has no gradient."""
        counts, each = self.answers.token_counts, 2 if self.paired else 1
        tokens, squares = counts.tokens.reshape(-1, each), counts.squares.reshape(-1, each)
        return TokenCounts(tokens.sum(axis=1), squares.sum(axis=1))

    def largest(self, count: int) -> Indices:
        """Return the `count` training examples with the longest rows: int64, shape (count,)."""
        lengths = self.answers.rows.lengths.reshape(len(self.desirable), -1).max(axis=1)
        return np.argsort(-lengths[: self.train], kind="stable")[:count].astype(np.int64)

    def compared(self, batches: Iterable[Indices]) -> Pairs:
        """Return the prompts and other answers of all these global batches; none for pairs of answers."""
        return self.others.all_pairs_in(batches) if self.others else np.zeros(0, dtype=np.int64)

    def lengths(self, pairs: Pairs) -> NDArray[np.int64]:
        """Return the tokens of each sequence of the reference, shape (rows + pairs,)."""
        others = np.minimum(self.length, self.others.sizes(pairs)) if self.others else pairs
        return np.concatenate([self.answers.rows.lengths, others])

    def set_reference(self, values: NDArray[np.float32], pairs: Pairs) -> None:
        """Set the reference's log-probabilities of all sequences, shape (rows + pairs,)."""
        rows = len(values) - len(pairs)
        self.reference[:] = values[:rows].reshape(self.reference.shape)
        self.other_reference.pairs, self.other_reference.values = pairs, values[rows:]

    def sequences(self, numbers: Indices, pairs: Pairs, device: torch.device) -> Tensors:
        """Return inputs and labels of sequences by their numbers: int64, each of shape (n, length)."""
        rows = self.answers.rows
        segments = [
            rows.segments(number) if number < len(rows) else [self._other(int(pairs[number - len(rows)]))]
            for number in numbers.tolist()
        ]
        return self.answers.batch_of(segments, device)

    def other_batch(self, pairs: Pairs, device: torch.device) -> Tensors:
        """Return inputs and labels of prompts with other answers (int64, (n, length)), and the reference's
        log-probabilities (fp32, (n,))."""
        rows = self.answers.batch_of([[self._other(pair)] for pair in pairs.tolist()], device)
        return (*rows, torch.from_numpy(self.other_reference.of(pairs)).to(device, non_blocking=True))

    def _other(self, pair: int) -> Segment:
        assert self.others is not None, "pairs of answers have no others"
        return Answer(*self.others.of_pair(pair)).segment(self.length)

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return the batch of n examples.

        Both answers of pairs are in one tensor, chosen answers first: inputs and labels (int64, (2 n, length)), then
        the reference's log-probabilities (fp32, (n, 2)). Else: inputs and labels of the answers (int64, (n, length)),
        the reference's log-probabilities (fp32, (n, 1)), and which are desirable (bool, (n,)).
        """
        reference = torch.from_numpy(self.reference[indices]).to(device, non_blocking=True)
        if self.paired:
            rows = np.concatenate([2 * indices, 2 * indices + 1])
            return (*self.answers.train_batch(rows, device), reference)
        desirable = torch.from_numpy(self.desirable[indices]).to(device, non_blocking=True)
        return (*self.answers.train_batch(indices, device), reference, desirable)

    def digest_arrays(self, examples: int | None = None) -> list[NDArray[Any]]:
        """Return the arrays that identify the first `examples` examples. None: the training examples."""
        examples = self.train if examples is None else examples
        rows = self.answers.rows
        assert isinstance(rows, TokenRows), "answers are in memory"
        ends = rows.ends[: (2 if self.paired else 1) * examples]
        stop = ends[-1]
        arrays: list[NDArray[Any]] = [ends, rows.tokens[:stop], rows.targets[:stop], self.desirable[:examples]]
        for one in (self.others.prompts, self.others.answers) if self.others else ():
            arrays += [one.ends[:examples], one.tokens[: one.ends[examples - 1]]]
        return arrays


def answer_examples(
    train: Sequence[AnswerRows],
    held_out: dict[str, AnswerRows],
    *,
    paired: bool,
    length: int = 0,
    multiple: int = 1,
    context: int | None = None,
    mixture: Mixture | None = None,
) -> AnswerExamples:
    """Return the examples of each source for training, and of the held-out sets; the only set has an empty name.

    Args:
        length: The tokens of a row at most; needed for answers with labels.
    """
    parts, each = [*train, *held_out.values()], 2 if paired else 1
    rows = concatenate_rows([part.rows for part in parts])
    count, after = sum(map(len, train)), sum(map(len, held_out.values()))
    answers = RowExamples((), each * count, each * after, rows=rows, packed=False, multiple=multiple, context=context)
    sets = {name: len(part) for name, part in held_out.items() if name}
    apart = [part.parts for part in parts if part.parts]
    return AnswerExamples(
        (),
        count,
        after,
        held_out_sets=sets,
        mixture=mixture,
        answers=answers,
        desirable=np.concatenate([part.desirable for part in parts]),
        paired=paired,
        reference=np.zeros((count + after, each), dtype=np.float32),
        length=length,
        others=None if paired else PromptsAndAnswers.joined(apart),
    )
