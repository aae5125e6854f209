"""The data account of a source: counts of its records on their way to learned tokens.

Counts of examples, by name:

* `answers`: messages of the assistant; `answers_trained`; and untrained answers: `answers_excluded` by the
  record, `answers_stripped` since the chat template leaves a part of them out, as some do with the reasoning of earlier
  answers, and `answers_unlocated` since the template does not show where they begin and end.
* `reasoning_left_out`: answers that are trained without their reasoning, which the template does not write.
* `answers_empty`: answers, and texts of format `text`, that are learned and hold nothing but white space.
* `answers_desirable` and `answers_undesirable`: answers with a label.
* `answers_with_turns`: answers of a preference that go on with messages of other roles, whose tokens count too.
* `tools_unused`: conversations whose `tools` the template does not write.
* `end_tokens_present`: texts that end with the end token, which is not added again.
* `specials_doubled`: examples in which a special token follows itself.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from worker.data.account_summary import count_sentence
from worker.data.chat_template import EMPTY, MarkedText
from worker.data.notices import Notice
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

_WARNINGS: Mapping[str, str] = {
    "answers_stripped": "answers_not_trained",
    "answers_unlocated": "answers_not_trained",
    "reasoning_left_out": "reasoning_unused",
    EMPTY: EMPTY,
    "tools_unused": "tools_unused",
    "specials_doubled": "specials_doubled",
}
"""The kinds of the events that warn of a count. The account of the source states all counts."""


def counts_of(tokenizer: Tokenizer, marked: MarkedText, segment: Segment) -> Counter[str]:
    """Return the counts of an example."""
    counts = Counter(marked.counts)
    if not segment.targets[1:].any():
        # Nothing of the example is learned, as the account states.
        del counts[EMPTY]
    if not marked.is_rendered and tokenizer.end_text and marked.text.endswith(tokenizer.end_text):
        counts["end_tokens_present"] += 1
    repeated = segment.tokens[1:][segment.tokens[1:] == segment.tokens[:-1]]
    if np.isin(repeated, list(tokenizer.special_tokens)).any():
        counts["specials_doubled"] += 1
    return counts


def notices_of(section: str, counts: Mapping[str, int]) -> list[Notice]:
    """Return the warnings about the counts of a source."""
    return [
        Notice(kind, f"{section}: {count_sentence(name, counts)}", "warning", {"count": name, "number": counts[name]})
        for name, kind in _WARNINGS.items()
        if counts.get(name, 0)
    ]


def template_notices(section: str, tokenizer: Tokenizer, *, chats: bool) -> list[Notice]:
    """Return the warning about examples without an end, from which the model does not learn where to stop.

    Args:
        chats: Whether the template writes the examples.
    """
    by_template = chats and tokenizer.template is not None
    if tokenizer.turn_end if by_template else tokenizer.end_text:
        return []
    cause = "chat template ends answers with no special token" if by_template else "tokenizer has no end token"
    message = f"{section}: the model's {cause}, so the model does not learn where an example ends"
    return [Notice("no_end_token", message, "warning")]
