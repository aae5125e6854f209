"""Finds the end of an answer in a chat, by a probe of the chat template."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_MARKER = re.compile(r"\s*(?:<[^<>]+>|\[[^\[\]]+\])\s*")
_Render = Callable[[Sequence[dict[str, str]]], str]


def common_start(first: str, second: str) -> str:
    """Return the longest text with which both begin."""
    differing = (index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return first[: next(differing, min(len(first), len(second)))]


def without_cut_marker(text: str) -> str:
    """Return a text without the beginning of a marker such as `<|user|>` at its end."""
    start = max(text.rfind("<"), text.rfind("["))
    return text if start < 0 or (">" if text[start] == "<" else "]") in text[start:] else text[:start]


def answer_ends(render: _Render) -> tuple[str, str]:
    """Return the texts that a chat template writes after an answer before another message, and after the last answer;
    empty if it writes none.

    Args:
        render: Returns the text of messages, empty if the template refuses them.
    """
    talk = [{"role": role, "content": f"\ue000{role}{number}"} for number in (1, 2) for role in ("user", "assistant")]
    answer, question = talk[1]["content"], talk[2]["content"]
    whole, last = render(talk), render(talk[:2]).partition(answer)[2]
    if not all(one["content"] in whole for one in talk):
        return last, last
    middle = whole.partition(answer)[2].partition(question)[0]
    common = without_cut_marker(common_start(middle, last))
    if not common.strip() and (markers := [_MARKER.match(text) for text in (middle, last)]) and all(markers):
        # The last answer ends with another marker than the others.
        common = str(markers[0] and markers[0][0])
    return common, last


def end_tokens(tokenizer: Any, *named: int | Sequence[int] | None) -> list[int]:
    """Return the tokens that end a text: the tokens that a configuration names, the tokenizer's end token, and the end
    of an answer in a chat; without repetition."""
    listed = [one for each in named for one in (each if isinstance(each, Sequence) else [each])]
    tokens = (*listed, tokenizer.eos_token_id, turn_end(tokenizer))
    return list(dict.fromkeys(token for token in tokens if isinstance(token, int)))


def turn_end(tokenizer: Any) -> int | None:
    """Return the token that ends an answer in a chat; None without a chat template, or if no single special token
    does."""
    if not getattr(tokenizer, "chat_template", None):
        return None

    def render(messages: Sequence[dict[str, str]]) -> str:
        parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        texts = (_rendered(tokenizer, form) for form in (list(messages), parts))
        return next((text for text in texts if messages[0]["content"] in text), "")

    ending = answer_ends(render)[1].strip()
    tokens = tokenizer(ending, add_special_tokens=False)["input_ids"] if ending else []
    special = {*tokenizer.all_special_ids, *(getattr(tokenizer, "added_tokens_decoder", None) or ())}
    return next((int(token) for token in tokens if token in special), None)


def _rendered(tokenizer: Any, messages: list[Any]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:  # templates raise any class, jinja's own too
        return ""
