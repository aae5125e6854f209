"""Makes the account of a source from its tokenised files, its chat template and its rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.contract.wire.data_accounts import DATA_ACCOUNT, DataAccount, TemplateFacts
from worker.data.account_summary import headline_of, summary_of
from worker.data.answers import Answer
from worker.data.cut_examples import CutExamples
from worker.data.notices import Notice
from worker.data.shown_examples import shown_numbers, shown_text
from worker.data.template_traits import FIXED_DATE
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

_TRAIT_CHARACTERS = 2000


def shown_of(
    tokens: NDArray[np.int32], targets: NDArray[Any], ends: NDArray[np.int64], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Return a few examples as JSON data.

    Args:
        tokens: The tokens of all examples, shape (tokens,).
        targets: Whether each is learned, shape (tokens,).
        ends: The index after each example's last token, shape (examples,).
    """
    shown = []
    for number in shown_numbers(len(ends)):
        start, end = int(ends[number - 1]) if number else 0, int(ends[number])
        segment = Segment(tokens[start:end], targets[start:end].astype(np.bool_))
        text = shown_text(segment, tokenizer.decode).model_dump(mode="json")
        shown.append({"number": number + 1, "texts": [text]})
    return shown


def token_facts(targets: NDArray[Any], ends: NDArray[np.int64]) -> dict[str, int]:
    """Return the learned tokens of all examples, and the tokens of the longest; see `shown_of` for the arrays."""
    starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
    lengths = np.diff(ends, prepend=0)
    # The first token of an example is no target, since no token precedes it.
    first = int(targets[starts[lengths > 0]].astype(np.int64).sum())
    return {"learned_tokens": int(np.count_nonzero(targets)) - first, "longest": int(lengths.max(initial=0))}


def answer_facts(
    examples: Sequence[Sequence[Answer]], labels: Sequence[bool], tokenizer: Tokenizer, *, paired: bool
) -> dict[str, Any]:
    """Return fields of the account of preferences: pairs of a chosen and a rejected answer, or answers with a label."""
    shown = []
    for number in shown_numbers(len(examples)):
        names = ("chosen", "rejected") if paired else ("answer",)
        label = None if paired else "desirable" if labels[number] else "not desirable"
        segments = [one.segment(one.size) for one in examples[number]]
        texts = [shown_text(one, tokenizer.decode, name, label) for one, name in zip(segments, names, strict=True)]
        shown.append({"number": number + 1, "texts": [text.model_dump(mode="json") for text in texts]})
    answers = [answer for example in examples for answer in example]
    return {
        "examples": len(examples),
        "tokens": sum(answer.size for answer in answers),
        "learned_tokens": sum(answer.size - max(len(answer.prompt), 1) for answer in answers if answer.size),
        "longest": max((answer.size for answer in answers), default=0),
        "shown": shown,
    }


def template_facts(tokenizer: Tokenizer) -> TemplateFacts | None:
    """Return the facts that a probe finds about the tokenizer's chat template; None without a template."""
    if tokenizer.template is None:
        return None
    traits = tokenizer.template.traits
    return TemplateFacts(
        turn_end=tokenizer.turn_end or "",
        end_token=tokenizer.end_text,
        system_prompt=traits.system_prompt[:_TRAIT_CHARACTERS],
        generation_start=traits.answer_start[:_TRAIT_CHARACTERS],
        opens_thought=traits.opens_thought[:_TRAIT_CHARACTERS],
        strips_reasoning=traits.strips_reasoning,
        arguments=traits.arguments,
        marks_answers=traits.marks_answers,
        learned_header=traits.learned_header[:_TRAIT_CHARACTERS],
        fixed_date=FIXED_DATE if traits.writes_date else "",
    )


def account_of(
    section: str,
    facts: Mapping[str, Any],
    template: TemplateFacts | None,
    max_length: int,
    *,
    cut: Sequence[CutExamples] = (),
    rows: int = 0,
    held_out_rows: int = 0,
) -> DataAccount:
    """Return the account of a source.

    Args:
        section: The field of the spec that names it.
        facts: `format`, `examples`, `bad` and, where they are known, other fields of the account.
        template: None: no chat template writes the examples.
        max_length: Tokens of a row at most.
        cut: Counts of examples that this length affects: all examples, or both parts if some are held out.
        rows: For training, or of an evaluation set.
        held_out_rows: The number of rows that are held out.
    """
    known = {name: facts[name] for name in _COPIED if name in facts}
    known["counts"] = {name: count for name, count in facts.get("counts", {}).items() if count}
    account = DataAccount(
        section=section,
        records=facts["examples"] + facts["bad"],
        bad_records=facts["bad"],
        template=template,
        max_length=max_length,
        rows=rows,
        held_out_rows=held_out_rows,
        truncated=sum(one.truncated for one in cut),
        too_long=sum(one.too_long for one in cut),
        empty=sum(one.empty for one in cut),
        equal=sum(one.equal + one.equal_when_cut for one in cut),
        **known,
    )
    return account.model_copy(update={"summary": summary_of(account)})


_COPIED = (
    "format",
    "complete",
    "examples",
    "reasons",
    "unread_fields",
    "tokens",
    "learned_tokens",
    "longest",
    "shown",
)


def account_notice(account: DataAccount) -> Notice:
    """Return the account as an event of the run."""
    return Notice(DATA_ACCOUNT, f"{account.section}: {headline_of(account)}", data=account.model_dump(mode="json"))
