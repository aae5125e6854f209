"""The account of the loss: what became of the records of a source on their way to tokens that are learned.

Counts of examples, by name:

* `answers`: messages of the assistant; `answers_trained`; and those that are not trained: `answers_excluded` by the
  record, `answers_stripped` since the chat template leaves a part of them out, as some do with the reasoning of earlier
  answers, and `answers_unlocated` since the template does not show where they begin and end.
* `reasoning_left_out`: answers that are trained without their reasoning, which the template does not write.
* `tools_unused`: conversations whose `tools` the template does not write.
* `end_tokens_present`: texts that end with the end token, which is not added again.
* `specials_doubled`: examples in which a special token follows itself.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import numpy as np

from worker.data.chat_template import MarkedText
from worker.data.notices import Notice
from worker.data.token_rows import Segment
from worker.data.tokenizers import Tokenizer

_SHOWN = 2000
"""Characters of a text that are shown."""
_NOTICES: Mapping[str, tuple[str, Literal["info", "warning"], str, str]] = {
    "answers_stripped": (
        "answers_not_trained",
        "warning",
        "answers",
        "{counted} not trained, since the model's chat template leaves a part of them out, such as the reasoning of an "
        "answer before the last",
    ),
    "answers_unlocated": (
        "answers_not_trained",
        "warning",
        "answers",
        "{counted} not trained, since the model's chat template does not show where they begin and end",
    ),
    "reasoning_left_out": (
        "reasoning_unused",
        "warning",
        "answers",
        "{counted} trained without the reasoning, which the model's chat template does not write",
    ),
    "tools_unused": (
        "tools_unused",
        "warning",
        "examples",
        "the model's chat template leaves out the `tools` of {counted}, so that the model does not see them; use a "
        "model whose template writes `tools`",
    ),
    "end_tokens_present": (
        "end_tokens_present",
        "info",
        "texts",
        "{counted} with the end token at the end, where it was not added again",
    ),
    "specials_doubled": (
        "specials_doubled",
        "warning",
        "examples",
        "{counted} with a special token twice in a row; the records may hold tokens that the chat template writes too",
    ),
}
"""The kind, the level, what is counted, and the message, by the name of the count."""


def counts_of(tokenizer: Tokenizer, marked: MarkedText, segment: Segment) -> Counter[str]:
    """Return the counts of one example."""
    counts = Counter(marked.counts)
    if not marked.is_rendered and tokenizer.end_text and marked.text.endswith(tokenizer.end_text):
        counts["end_tokens_present"] += 1
    repeated = segment.tokens[1:][segment.tokens[1:] == segment.tokens[:-1]]
    if np.isin(repeated, list(tokenizer.special_tokens)).any():
        counts["specials_doubled"] += 1
    return counts


def notices_of(section: str, counts: Mapping[str, int]) -> list[Notice]:
    """Return what a user should know of the counts of a source."""
    notices: list[Notice] = []
    for name, (kind, level, unit, text) in _NOTICES.items():
        if number := counts.get(name, 0):
            counted = f"{number} {unit[:-1] if number == 1 else unit}"
            of_all = f" of {counts['answers']}" if name.startswith("answers") else ""
            message = f"{section}: {text.format(counted=counted + of_all)}"
            reason = {"reason": name.removeprefix("answers_")} if kind == "answers_not_trained" else {}
            notices.append(Notice(kind, message, level, {unit: number, **reason}))
    return notices


def template_notices(section: str, tokenizer: Tokenizer, *, chats: bool) -> list[Notice]:
    """Return what a user should know of where the model will stop, and of what its chat template adds.

    Args:
        chats: Whether the template writes the examples.
    """
    if not chats or tokenizer.template is None:
        if tokenizer.end_text:
            return []
        message = f"{section}: the tokenizer has no end token, so the model does not learn where an example ends"
        return [Notice("no_end_token", message, "warning")]
    notices = []
    traits, end = tokenizer.template.traits, tokenizer.turn_end
    if end is None:
        message = (
            f"{section}: the model's chat template ends answers with no special token, so that the model may write on "
            "after an answer"
        )
        notices.append(Notice("no_end_token", message, "warning"))
    elif end != tokenizer.end_text:
        message = (
            f"{section}: the model's chat template ends answers with `{end}`, and the tokenizer's end token is "
            f"`{tokenizer.end_text}`; samples, exports and `trainyard generate` stop at both"
        )
        notices.append(Notice("turn_end", message, data={"turn_end": end, "end_token": tokenizer.end_text}))
    if traits.system_prompt:
        message = f"{section}: the model's chat template adds a system message of its own to conversations without one"
        notices.append(Notice("system_prompt_added", message, data={"text": traits.system_prompt[:_SHOWN]}))
    if traits.opens_thought:
        message = (
            f"{section}: where the model shall answer, its chat template begins with `{traits.opens_thought}`; answers "
            "without reasoning are trained without it"
        )
        notices.append(Notice("thought_opened", message, data={"text": traits.opens_thought[:_SHOWN]}))
    return notices
