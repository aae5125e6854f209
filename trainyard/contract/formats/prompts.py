"""Separates prompts from their answers, for texts and for conversations. Pure functions of plain data."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trainyard.contract.formats.messages import InvalidMessageError, parse_messages
from trainyard.contract.formats.records import misfit
from trainyard.contract.formats.training_marks import training_mark

_JOINING = ("Mn", "Mc", "Me", "Cf", "Sk")
"""Unicode categories whose characters belong to the preceding character."""
_JOINER = "\u200d"
_WORD_SIGNS = "_'\u2019"
NO_BEGINNING = (
    "`prompt` is missing, and `chosen` and `rejected` have no common beginning that could be the prompt; if another "
    "field has it, name that one `prompt`, or set data.columns"
)


@dataclass(frozen=True)
class Messages:
    """A part of a conversation."""

    messages: list[dict[str, Any]]
    marks: list[bool | None]
    """The training mark of each message, shape (messages,); see `training_mark`."""

    def __getitem__(self, part: slice) -> "Messages":
        return Messages(self.messages[part], self.marks[part])

    def __len__(self) -> int:
        return len(self.messages)


def answered(
    format: str,
    prompt: str | Sequence[Any] | None,
    answers: Mapping[str, Sequence[Any]],
    expected: str,
    field: str = "prompt",
) -> tuple[Messages, list[Messages]]:
    """Return the messages of a prompt, and of each answer without the messages of the prompt.

    Args:
        prompt: A text is a message of the user. None: the common beginning of the answers.
        answers: Lists of messages by their fields. They may begin with the messages of the prompt.
        expected: Description of the format, for messages.
        field: The field of the prompt, for messages.

    Raises:
        BadRecordError: A message is invalid, or it is unclear where the answers begin.
    """
    try:
        parsed = [_parsed(messages, name) for name, messages in answers.items()]
        given = None if prompt is None or isinstance(prompt, str) else _parsed(prompt, field)
    except InvalidMessageError as error:
        raise misfit(format, expected, str(error)) from None
    shared = _common_messages(parsed)
    question = parsed[0][:shared]
    if given is not None:
        count, question = len(given), given
        is_repeated = all(len(one) > count and one.messages[:count] == given.messages for one in parsed)
        shared = count if is_repeated else 0
    elif isinstance(prompt, str) and not _has_text(question, prompt):
        shared, question = 0, Messages([{"role": "user", "content": prompt}], [None])
    elif not shared:
        raise misfit(format, expected, NO_BEGINNING)
    for name, one in zip(answers, parsed, strict=True):
        # The model writes answers; messages of other roles are not answers.
        if not _is_answer(one, shared):
            role = one.messages[shared]["role"]
            begins = "continues after the prompt" if shared else "begins"
            raise misfit(format, expected, f"`{name}` {begins} with a message of the role `{role}`")
    return question, [one[shared:] for one in parsed]


def _parsed(messages: Sequence[Any], field: str) -> Messages:
    parsed = parse_messages(messages, field)
    of_list = "" if field == "messages" else f" of `{field}`"
    marks = [
        training_mark(source, message["role"], f"message {number}{of_list}")
        for number, (message, source) in enumerate(zip(parsed, messages, strict=True), 1)
    ]
    return Messages(parsed, marks)


def _is_answer(answer: Messages, index: int) -> bool:
    return bool(answer.messages[index]["role"] == "assistant")


def _has_text(question: Messages, text: str) -> bool:
    """Return whether the user has written a text in this part of a conversation."""
    return any(one["role"] == "user" and one["content"].strip() == text.strip() for one in question.messages)


def _common_messages(answers: Sequence[Messages]) -> int:
    """Return the number of leading messages that two conversations share, so that each has an answer left. With a
    single conversation, return the number of messages before its first answer."""
    first, last = answers[0].messages, answers[-1].messages
    if len(answers) == 1:
        return sum(1 for _ in takewhile(lambda one: one["role"] != "assistant", first[:-1]))
    count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first[:-1], last[:-1], strict=False)))
    # If one conversation continues the other, or both are equal, the last common answer belongs to both.
    while count and first[count] == last[count] and first[count]["role"] != "assistant":
        count -= 1
    return count


def split_texts(chosen: str, rejected: str) -> tuple[str, tuple[str, str]]:
    """Return the common beginning of two texts, cut between words, and the rest of each. A space before the answers
    belongs to them, as tokenizers treat it as the beginning of a word."""
    pairs = zip(chosen, rejected, strict=False)
    end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    while end and any(_belong_together(chosen[end - 1], text[end : end + 1]) for text in (chosen, rejected)):
        end -= 1
    if end and chosen[end - 1] == " ":
        end -= 1
    return chosen[:end], (chosen[end:], rejected[end:])


def _belong_together(first: str, second: str) -> bool:
    """Return whether two characters belong to the same word or sign; `second` is empty at the end of a text."""
    if not second:
        return False
    # Accents, joiners and colours of signs change the preceding character.
    return unicodedata.category(second) in _JOINING or first == _JOINER or (_in_word(first) and _in_word(second))


def _in_word(character: str) -> bool:
    return character.isalnum() or character in _WORD_SIGNS or unicodedata.category(character) in _JOINING
