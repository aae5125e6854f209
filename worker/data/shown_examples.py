"""Examples as text: which parts of them are learned, bounded in length. Pure functions."""

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from trainyard.contract.wire.data_accounts import ExampleText, TextPart
from worker.data.token_rows import Segment

_HEAD, _TAIL = (400, 1200, 40), (200, 600, 20)
"""Tokens, characters and parts that are shown of the beginning and of the end of a text, at most."""
_TOKEN_CHARACTERS = 200
"""Characters that are shown of a token; users may add longer tokens."""
_UNFINISHED = "\ufffd"
"""The text to which a tokenizer decodes the first bytes of a character."""
_NUL = "\u2400"
"""Shown for NUL, which databases reject."""

Decode = Callable[[Sequence[int]], str]
_TokenText = tuple[str, bool]
"""The text of a token, and whether it is learned."""


def shown_numbers(examples: int) -> list[int]:
    """Return the indices of the examples that are shown: the first, one in the middle and the last."""
    return sorted({0, examples // 2, examples - 1}) if examples else []


def shown_text(segment: Segment, decode: Decode, name: str = "text", label: str | None = None) -> ExampleText:
    """Return the tokens of an example as text, its middle left out where it is long.

    Args:
        decode: Returns the text of tokens, including special tokens.
        name: The role of the text; see `ExampleText.name`.
    """
    tokens, learned = segment.tokens, segment.targets.astype(np.bool_)
    # The first token is no target, since no token precedes it.
    learned[:1] = False
    count = len(tokens)
    if count <= _HEAD[0] + _TAIL[0]:
        head = tail = _token_texts(tokens.tolist(), learned.tolist(), decode)
    else:
        head = _token_texts(tokens[: _HEAD[0]].tolist(), learned[: _HEAD[0]].tolist(), decode)
        tail = _token_texts(tokens[-_TAIL[0] :].tolist(), learned[-_TAIL[0] :].tolist(), decode)
    first = _fitting(head, _HEAD)
    last = min(_fitting(tail[::-1], _TAIL), count - first)
    if first + last == count and head is tail:
        parts = _joined(head)
    else:
        omitted = TextPart(text="", omitted_tokens=count - first - last)
        parts = [*_joined(head[:first]), omitted, *_joined(tail[len(tail) - last :])]
    sums = {"tokens": count, "learned_tokens": int(learned.sum())}
    return ExampleText.model_validate({"name": name, "label": label, "parts": parts, **sums})


def _token_texts(tokens: list[int], learned: list[bool], decode: Decode) -> list[_TokenText]:
    """Return the text of each token. A character of several tokens belongs to the last of them."""
    items: list[_TokenText] = []
    before = ""
    for index, is_learned in enumerate(learned):
        text = decode(tokens[: index + 1])
        if index + 1 < len(tokens):
            text = text.rstrip(_UNFINISHED)
        # The text of some tokens depends on later tokens.
        item = text[len(before) :] if text.startswith(before) else decode(tokens[index : index + 1])
        before = text
        items.append((item[:_TOKEN_CHARACTERS].replace("\0", _NUL), is_learned))
    return items


def _fitting(items: Sequence[_TokenText], limits: tuple[int, int, int]) -> int:
    """Return how many of the first items fit into the limits."""
    _, characters, parts = limits
    previous: bool | None = None
    for index, (text, is_learned) in enumerate(items):
        characters -= len(text)
        parts -= is_learned != previous
        previous = is_learned
        if characters < 0 or parts < 0:
            return index
    return len(items)


def _joined(items: Sequence[_TokenText]) -> list[TextPart]:
    groups = groupby(items, key=lambda item: item[1])
    joined = [(is_learned, "".join(text for text, _ in group)) for is_learned, group in groups]
    return [TextPart(text=text, learned=is_learned) for is_learned, text in joined if text]
