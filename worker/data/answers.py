"""Examples with two answers each: a chosen and a rejected one, or one with a label beside one to another prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker.data.examples import Examples, Tensors, TokenCounts
from worker.data.mixture import Mixture
from worker.data.sampler import Indices
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
        """Return both as one segment whose targets are the answer, cut after `length` tokens."""
        tokens = np.concatenate([self.prompt, self.answer])[:length]
        targets = np.arange(len(tokens)) >= len(self.prompt)
        # Of a segment without a prompt, no token precedes the first one.
        targets[:1] = False
        return Segment(tokens, targets)


@dataclass(frozen=True)
class AnswerRows:
    """The rows of a data set: those of example i are 2 i and 2 i + 1."""

    rows: TokenRows
    desirable: NDArray[np.bool_]
    """Shape (examples,): whether the first answer is desirable; true for all pairs."""

    def __len__(self) -> int:
        return len(self.desirable)


def pair_rows(pairs: Sequence[tuple[Answer, Answer]], length: int) -> AnswerRows:
    """Return the rows of pairs of a chosen and a rejected answer; those of which an answer has no token within `length`
    are left out."""
    cut = [(chosen.segment(length), rejected.segment(length)) for chosen, rejected in pairs]
    rows = [[segment] for pair in cut if all(one.targets.any() for one in pair) for segment in pair]
    return AnswerRows(_build(rows), np.ones(len(rows) // 2, dtype=np.bool_))


def are_equal(chosen: Answer, rejected: Answer, length: int) -> bool:
    """Return whether two answers are the same within `length` tokens, so that no preference can be learned of them."""
    first, second = chosen.segment(length), rejected.segment(length)
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.targets, second.targets)


def labelled_rows(answers: Sequence[Answer], desirable: Sequence[bool], length: int) -> AnswerRows:
    """Return the rows of answers with a label. The second row of an example has its prompt and the answer of the last
    example before it that has another prompt; the last one precedes the first (KTO, arXiv:2402.01306, section 4.1)."""
    usable = [number for number, one in enumerate(answers) if one.segment(length).targets.any()]
    answers, labels = [answers[number] for number in usable], [desirable[number] for number in usable]
    rows: list[list[Segment]] = []
    for one, other in zip(answers, _others(answers), strict=True):
        rows += [[one.segment(length)], [Answer(one.prompt, other.answer).segment(length)]]
    return AnswerRows(_build(rows), np.array(labels, dtype=np.bool_))


def _others(answers: Sequence[Answer]) -> list[Answer]:
    """Return for each answer the last one before it to another prompt, or just the one before if all prompts are the
    same; before the first comes the last."""
    count = len(answers)
    prompts = [one.prompt.tobytes() for one in answers]
    if len(set(prompts)) == 1:
        return [answers[index - 1] for index in range(count)]
    before: list[int] = []
    # Round the file twice, so that the first examples know the last ones.
    for position in range(2 * count):
        index, previous = position % count, (position - 1) % count
        same = prompts[index] == prompts[previous]
        before.append(before[-1] if same and before else previous)
    return [answers[index] for index in before[count:]]


def _build(rows: list[list[Segment]]) -> TokenRows:
    if rows:
        return build_token_rows(rows)
    none = np.zeros(0, dtype=np.int32)
    return TokenRows(none, none.astype(np.bool_), none, none.astype(np.int64))


@dataclass(frozen=True)
class AnswerExamples(Examples):
    """Examples with two rows each, and what the reference model makes of them."""

    answers: RowExamples
    """All rows; not packed."""
    desirable: NDArray[np.bool_] = field(kw_only=True)
    """Shape (examples,)."""
    paired: bool = field(kw_only=True)
    """Whether the rows are a chosen and a rejected answer; else the second is of another prompt."""
    reference: NDArray[np.float32] = field(kw_only=True)
    """The reference's log-probabilities of both answers, shape (examples, 2). The engine writes them before the first
    step; zeros until then."""

    @cached_property
    def token_counts(self) -> TokenCounts:
        """The tokens with a gradient, by example; those of the answer to another prompt have none."""
        counts = self.answers.token_counts
        step = 1 if self.paired else 2
        tokens, squares = counts.tokens.reshape(-1, 2), counts.squares.reshape(-1, 2)
        return TokenCounts(tokens[:, : 3 - step].sum(axis=1), squares[:, : 3 - step].sum(axis=1))

    def largest(self, count: int) -> Indices:
        """Return the `count` training examples with the longest rows: int64, shape (count,)."""
        return np.argsort(-self.longest[: self.train], kind="stable")[:count].astype(np.int64)

    @cached_property
    def longest(self) -> NDArray[np.int64]:
        """The tokens of the longer row of each example, shape (examples,)."""
        lengths: NDArray[np.int64] = self.answers.rows.lengths.reshape(-1, 2).max(axis=1)
        return lengths

    def train_batch(self, indices: Indices, device: torch.device) -> Tensors:
        """Return the batch of n examples.

        Both answers of pairs are in one tensor, first all chosen ones: inputs and labels (int64, (2 n, length)), then
        the reference's log-probabilities (fp32, (n, 2)). Else: inputs and labels of the answers (int64, (n, length))
        and of those to other prompts, the reference's log-probabilities, and which are desirable (bool, (n,)).
        """
        first, second = 2 * indices, 2 * indices + 1
        reference = torch.from_numpy(self.reference[indices]).to(device, non_blocking=True)
        if self.paired:
            return (*self.answers.train_batch(np.concatenate([first, second]), device), reference)
        desirable = torch.from_numpy(self.desirable[indices]).to(device, non_blocking=True)
        rows = (*self.answers.train_batch(first, device), *self.answers.train_batch(second, device))
        return (*rows, reference, desirable)

    def digest_arrays(self, examples: int) -> list[NDArray[Any]]:
        """Return what the digest of the first `examples` examples is taken of."""
        rows = self.answers.rows
        assert isinstance(rows, TokenRows), "answers are in memory"
        ends = rows.ends[: 2 * examples]
        stop = ends[-1]
        return [ends, rows.tokens[:stop], rows.targets[:stop], self.desirable[:examples]]


def answer_examples(
    train: Sequence[AnswerRows],
    held_out: dict[str, AnswerRows],
    *,
    paired: bool,
    multiple: int = 1,
    context: int | None = None,
    mixture: Mixture | None = None,
) -> AnswerExamples:
    """Return the examples of each source for training, and of the held-out sets; the only set has an empty name."""
    parts = [*train, *held_out.values()]
    rows = concatenate_rows([part.rows for part in parts])
    count, after = sum(map(len, train)), sum(map(len, held_out.values()))
    answers = RowExamples((), 2 * count, 2 * after, rows=rows, packed=False, multiple=multiple, context=context)
    sets = {name: len(part) for name, part in held_out.items() if name}
    return AnswerExamples(
        (),
        count,
        after,
        held_out_sets=sets,
        mixture=mixture,
        answers=answers,
        desirable=np.concatenate([part.desirable for part in parts]),
        paired=paired,
        reference=np.zeros((count + after, 2), dtype=np.float32),
    )
