"""The traits of a chat template. A probe finds them, so that no model name decides."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainyard.loading.turn_end import answer_ends, common_start, without_cut_marker

Arguments = Literal["object", "text", "unknown"]

_ARGUMENTS = {"first": "it's", "second": None, "third": [1, True], "fourth": {"fifth": 'a "b"'}, "sixth": "word"}
"""Arguments of a call that differ in JSON and in the syntax of Python."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_Q1, _A1, _Q2, _A2, _S1, _T1, _R1 = (f"\ue000{name}" for name in ("q1", "a1", "q2", "a2", "s1", "t1", "r1"))
"""Contents of messages that no template holds."""
FIXED_DATE = "26 July 2024"
_DATE = {
    "%Y": "2024",
    "%y": "24",
    "%m": "07",
    "%d": "26",
    "%-d": "26",
    "%e": "26",
    "%-m": "7",
    "%j": "208",
    "%I": "12",
    "%p": "AM",
    "%F": "2024-07-26",
    "%T": "00:00:00",
    "%B": "July",
    "%b": "Jul",
    "%A": "Friday",
    "%a": "Fri",
    "%H": "00",
    "%M": "00",
    "%S": "00",
}
"""The parts of `FIXED_DATE`, to which templates of Llama fall back where no date is known."""


class Render(Protocol):
    """Returns the text of messages, with `prompt` also the start of an answer. Empty if the template refuses them."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str: ...


@dataclass(frozen=True)
class TemplateTraits:
    """The traits of a chat template, as a probe finds them. Texts are empty where the probe finds nothing."""

    headers: Mapping[str, str]
    """The text that begins a message, by role; only roles that the template accepts."""
    answer_start: str
    """The generation prompt: the header, and more if it opens a thought. Empty if there is none, so that the model has
    to write the header too."""
    turn_end: str
    """The text that ends an answer."""
    system_prompt: str
    """The system message that it adds to conversations without a system message."""
    opens_thought: str
    """The text of the generation prompt after the header, such as `<think>`."""
    strips_reasoning: bool
    """Whether it leaves the reasoning of earlier answers out."""
    arguments: Arguments
    """The form in which it takes the arguments of calls, so that they are JSON in its text."""
    marks_answers: bool
    """Whether it marks the learned text itself, by `{% generation %}`."""
    writes_date: bool
    """Whether it writes the current date, which a fixed date replaces."""

    @property
    def learned_header(self) -> str:
        """The header of an answer if it is learned too, since the template has no generation prompt; else empty."""
        return "" if self.answer_start else self.headers.get("assistant", "").strip()


def probe_traits(template: str, render: Render) -> TemplateTraits:
    """Return the traits of a template; a template that refuses the probe's conversations has none."""
    return _Probe(render).traits(
        marks_answers=bool(_GENERATION.search(template)), writes_date="strftime_now" in template
    )


def with_fixed_date(template: str) -> str:
    """Return a template in which `strftime_now` is a fixed day: a run that continues tomorrow has the same tokens, and
    so has each part of a conversation that is rendered around midnight."""
    if "strftime_now" not in template:
        return template
    replaced = "".join(f" | replace('{code}', '{text}')" for code, text in _DATE.items())
    return "{%- macro strftime_now(format) -%}{{ format" + replaced + " }}{%- endmacro -%}" + template


class _Probe:
    """Finds traits of a template by conversations whose contents are known."""

    def __init__(self, render: Render) -> None:
        self._raw = render

    def traits(self, *, marks_answers: bool, writes_date: bool) -> TemplateTraits:
        alone, begun = self._raw([_message("user", _Q1)]), self._raw([_message("user", _Q1)], prompt=True)
        # Some end a text in another way if no answer follows it.
        same = alone if begun.startswith(alone) else without_cut_marker(common_start(begun, alone))
        begin = begun[len(same) :]
        ending, _ = answer_ends(self._raw)
        headers = self._headers(ending, begin)
        header = headers.get("assistant", "")
        return TemplateTraits(
            headers=headers,
            answer_start=begin if begin.startswith(header) else header if begin else "",
            turn_end=ending,
            system_prompt=self._system_prompt(),
            opens_thought=begin.removeprefix(header).strip() if header and begin.startswith(header) else "",
            strips_reasoning=self._strips_reasoning(),
            arguments=self._arguments(),
            marks_answers=marks_answers,
            writes_date=writes_date,
        )

    def _headers(self, ending: str, begin: str) -> dict[str, str]:
        """Return the headers of messages by role.

        Args:
            ending: The text that ends an answer.
            begin: The generation prompt.
        """
        headers = {}
        talk = [_message("user", _Q1), _message("assistant", _A1), _message("user", _Q2), _message("assistant", _A2)]
        text = self._raw(talk)
        if all(mark in text for mark in (_Q1, _A1, _Q2, _A2)):
            after_user = self._raw(talk[:1]).rpartition(_Q1)[2]
            # Some write an empty thought after the header of an answer without reasoning.
            header = _without(_between(text, _Q1, _A1), after_user)
            common = without_cut_marker(common_start(header, begin))
            headers["assistant"] = common if common.strip() else header
            headers["user"] = _without(_between(text, _A1, _Q2), ending)
        if _S1 in (text := self._raw([_message("system", _S1), _message("user", _Q1)])):
            headers["system"] = text.partition(_S1)[0]
        call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {}}}
        tool = {"role": "tool", "content": _T1, "name": "f", "tool_call_id": "abcdefgh1"}
        before = [_message("user", _Q1), {**_message("assistant", ""), "tool_calls": [call]}]
        if _T1 in (text := self._raw([*before, tool])):
            head, alone = text.partition(_T1)[0], self._raw(before)
            if head.startswith(alone):
                headers["tool"] = head.removeprefix(alone)
            elif ending.strip() in head:
                headers["tool"] = head.rpartition(ending.strip())[2].lstrip()
        return headers

    def _system_prompt(self) -> str:
        alone, before = self._raw([_message("user", _Q1)]), self._raw([_message("system", _S1), _message("user", _Q1)])
        if _S1 not in before:
            return ""
        start, _, end = before.partition(_S1)
        # Templates that write the system message into the user's message have no place for a default system message.
        fits = alone.startswith(start) and alone.endswith(end) and len(alone) > len(start) + len(end)
        return alone[len(start) : len(alone) - len(end)].strip() if fits else ""

    def _strips_reasoning(self) -> bool:
        for first in (
            _message("assistant", f"<think>\n{_R1}\n</think>\n\n{_A1}"),
            {**_message("assistant", _A1), "reasoning_content": _R1, "thinking": _R1},
        ):
            alone = self._raw([_message("user", _Q1), first])
            followed = self._raw([_message("user", _Q1), first, _message("user", _Q2), _message("assistant", _A2)])
            if _R1 in alone and followed and _R1 not in followed:
                return True
        return False

    def _arguments(self) -> Arguments:
        texts = {}
        for form, arguments in (("object", _ARGUMENTS), ("text", json.dumps(_ARGUMENTS))):
            function = {"name": "f", "arguments": arguments}
            call = {"id": "abcdefgh1", "type": "function", "function": function}
            messages = [_message("user", _Q1), {**_message("assistant", ""), "tool_calls": [call]}]
            texts[form] = self._raw(messages) or self._raw([*messages, {"role": "tool", "content": "1", "name": "f"}])
        if _holds_json(texts["object"]):
            return "object"
        # Some templates write each argument in their own syntax; Python's syntax for objects is never intended.
        named = all(part in texts["object"] for part in (*_ARGUMENTS, "fifth", "word"))
        if named and not any(str(value) in texts["object"] for value in (_ARGUMENTS, _ARGUMENTS["fourth"])):
            return "object"
        if _holds_json(texts["text"]):
            return "text"
        # The examples tell whether the template omits calls or refuses them.
        return "unknown" if any("sixth" in text for text in texts.values()) else "object"


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _between(text: str, first: str, second: str) -> str:
    return text.partition(first)[2].partition(second)[0]


def _without(text: str, start: str) -> str:
    """Return a text without the beginning that it has in common with another text."""
    return text[len(without_cut_marker(common_start(text, start))) :]


def _holds_json(text: str) -> bool:
    """Return whether the text of the probe has its arguments as JSON."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        if value == _ARGUMENTS or _ARGUMENTS in (value.get("arguments"), value.get("parameters")):
            return True
    return False
