"""What is wrong with one line of a data file, by format. Pure functions.

The messages describe the line, and never quote it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.contract.wire.data_files import FileFormat

Line = Mapping[str, Any]
Check = Callable[[Line], str | None]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SHAREGPT_ROLES = ("system", "human", "user", "gpt", "assistant", "function_call", "observation", "tool")
_KEYS: Mapping[FileFormat, tuple[str, ...]] = {
    "chat": ("messages",),
    "sharegpt": ("conversations",),
    "openai_preference": ("preferred_output", "non_preferred_output"),
    "preference": ("chosen", "rejected"),
    "unpaired_preference": ("label",),
    "alpaca": ("instruction",),
    "completion": ("completion",),
    "text": ("text",),
}
"""Keys of which a line of the format has at least one; of several formats, the first is taken."""
EXPECTED: Mapping[FileFormat, str] = {
    "chat": "`messages`, a list of objects with `role` and `content`, one `role` being `assistant`",
    "sharegpt": "`conversations`, a list of objects with `from` and `value`",
    "openai_preference": "`input` with `messages`, and the lists `preferred_output` and `non_preferred_output`",
    "preference": "`prompt`, `chosen` and `rejected`, each a string or a list of messages",
    "unpaired_preference": "`prompt`, `completion` and `label`, which is true or false",
    "alpaca": "`instruction`, perhaps `input`, and `output`, all strings",
    "completion": "`prompt` and `completion`, two strings",
    "text": "`text`, a string",
}
"""What a line of each format is made of, for messages."""


def detect_format(line: Line) -> FileFormat | None:
    """Return the format whose keys the line has; None if it has those of no format."""
    return next((name for name, keys in _KEYS.items() if any(key in line for key in keys)), None)


def line_problem(name: FileFormat, line: Line) -> str | None:
    """Return what is wrong with a line of the format; None if nothing is."""
    return _CHECKS[name](line)


def _chat_problem(line: Line) -> str | None:
    if problem := _messages_problem("messages", line.get("messages")):
        return problem
    if not any(message["role"] == "assistant" for message in line["messages"]):
        return "`messages` has no message with the role `assistant`, so there is nothing to learn"
    return _tools_problem(line)


def _tools_problem(line: Line) -> str | None:
    return None if isinstance(line.get("tools") or [], list) else "`tools` is not a list"


def _messages_problem(field: str, messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return f"`{field}` is missing, or is not a list of messages"
    for number, message in enumerate(messages):
        if problem := _message_problem(message):
            return f"`{field}.{number}` {problem}"
    return None


def _message_problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is not an object"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        return f"has no `role` of {', '.join(_ROLES)}"
    calls_tools = role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
    if content is None:
        return None if calls_tools else "has no `content`"
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            return "has `content` with a part that is not text; only text can be trained on"
    elif not isinstance(content, str):
        return "has `content` that is neither a string nor a list of parts"
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        return "has a `weight` that is neither 0 nor 1"
    return None


def _sharegpt_problem(line: Line) -> str | None:
    turns = line.get("conversations")
    if not isinstance(turns, list) or not turns:
        return "`conversations` is missing, or is not a list"
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            return f"`conversations.{number}` has no `value` that is a string"
        if turn.get("from") not in _SHAREGPT_ROLES:
            return f"`conversations.{number}` has no `from` of {', '.join(_SHAREGPT_ROLES)}"
    return _tools_problem(line)


def _preference_problem(line: Line) -> str | None:
    for key in ("chosen", "rejected"):
        if not isinstance(value := line.get(key), str) and (problem := _messages_problem(key, value)):
            return problem if isinstance(value, list) else f"`{key}` is neither a string nor a list of messages"
    prompt = line.get("prompt", "")
    return None if isinstance(prompt, str) else _messages_problem("prompt", prompt)


def _openai_preference_problem(line: Line) -> str | None:
    given = line.get("input")
    if not isinstance(given, dict):
        return "`input` is missing, or is not an object"
    if problem := _messages_problem("input.messages", given.get("messages")):
        return problem
    for key in ("preferred_output", "non_preferred_output"):
        if problem := _messages_problem(key, line.get(key)):
            return problem
        if any(message["role"] == "user" for message in line[key]):
            return f"`{key}` has a message with the role `user`"
    return None


def _unpaired_preference_problem(line: Line) -> str | None:
    if not isinstance(line.get("label"), bool):
        return "`label` is neither true nor false"
    for key in ("prompt", "completion"):
        if not isinstance(value := line.get(key), str) and (problem := _messages_problem(key, value)):
            return problem
    return None


def _strings(*keys: str) -> Check:
    """Return the check of a line that has a string for each key."""

    def check(line: Line) -> str | None:
        missing = [key for key in keys if not isinstance(line.get(key), str)]
        return f"`{missing[0]}` is missing, or is not a string" if missing else None

    return check


_CHECKS: Mapping[FileFormat, Check] = {
    "chat": _chat_problem,
    "sharegpt": _sharegpt_problem,
    "openai_preference": _openai_preference_problem,
    "preference": _preference_problem,
    "unpaired_preference": _unpaired_preference_problem,
    "alpaca": _strings("instruction", "output"),
    "completion": _strings("prompt", "completion"),
    "text": _strings("text"),
}
