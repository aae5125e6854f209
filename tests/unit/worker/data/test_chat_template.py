"""What a chat template makes of a conversation: arguments of calls, thoughts, and texts that look like its own."""

import json
from typing import Any

import pytest

from tests.support.chat_templates import CALL, RESULT, TOOLS, answer, chat_of, templates, tokenizer_for, user
from trainyard.contract.formats.examples import Chat
from worker.data.chat_template import aligned
from worker.data.tokenizers import HfTokenizer
from worker.data.tool_calls import LostCallsError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<call>' + c.function.name }} ARGUMENTS</call>{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
OBJECT = CHATML.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
TEXT = CHATML.replace("ARGUMENTS", "{{ c.function.arguments }}")


def tokenizer(template: Any) -> HfTokenizer:
    made = tokenizer_for(CHATML)
    made.chat_template = template
    return HfTokenizer(made)


def learned(template: Any, *messages: dict[str, Any], tools: list[Any] | None = None) -> list[str]:
    """Return the texts that are learned."""
    chat = chat_of(list(messages))
    marked = tokenizer(template).conversation(Chat(chat.messages, tools, chat.trained))
    return [marked.text[start:end] for start, end in marked.spans]


@pytest.mark.parametrize(
    "template",
    [
        f"{{% if tools %}}TOOLS {TEXT}{{% else %}}{OBJECT}{{% endif %}}",
        {"default": OBJECT, "tool_use": TEXT},
        {"default": CHATML.replace(" ARGUMENTS", ""), "tool_use": TEXT},
        {"default": TEXT, "tool_use": OBJECT},
    ],
)
def test_arguments_are_json_if_tools_select_another_form(template: Any) -> None:
    text = learned(template, user("1 and 2?"), answer("", tool_calls=[CALL]), tools=TOOLS)[0]
    arguments = text.removeprefix("<call>add ").removesuffix("</call><|im_end|>\n")
    assert json.loads(arguments) == CALL["function"]["arguments"]


def test_template_that_leaves_arguments_out_is_refused() -> None:
    template = CHATML.replace("ARGUMENTS", "")
    bare = {**CALL, "function": {"name": "add", "arguments": "{}"}}
    for call, is_lost in ((CALL, True), (bare, False)):
        chat = chat_of([user("q"), answer("", tool_calls=[bare, call])])
        if is_lost:
            with pytest.raises(LostCallsError, match="the arguments of `tool_calls` of message 2"):
                tokenizer(template).conversation(chat)
        else:
            assert tokenizer(template).conversation(chat).counts["answers_trained"] == 1


def test_character_of_private_use_at_the_beginning_is_a_character() -> None:
    messages = (answer("\ue000a"), user("\ue000"), answer("\ue000\ue001"))
    assert learned(OBJECT, *messages) == ["\ue000a<|im_end|>\n", "\ue000\ue001<|im_end|>\n"]


@pytest.mark.parametrize("template", [OBJECT, CHATML.replace("ARGUMENTS", "{{ c.function.arguments.x }}")])
def test_half_of_a_surrogate_pair_in_arguments_is_refused(template: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\\ud83d"}'}}
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        learned(template, user("q"), answer("", tool_calls=[call]))


def test_refusal_without_a_message_has_its_kind() -> None:
    with pytest.raises(ValueError, match="refuses these messages: MemoryError"):
        learned("{{ 'a' * 100000000000000 }}", user("q"), answer("a"))


def test_generation_prompt_is_not_learned_if_another_end_precedes_it() -> None:
    template = OBJECT + "{{ messages | length }}"
    messages = (user("q1"), answer("a1"), user("q2"), answer("a2"))
    assert learned(template, *messages) == ["a1<|im_end|>\n", "a2<|im_end|>\n4"]


def test_answer_that_begins_like_an_open_thought_is_learned_as_a_whole() -> None:
    template = OBJECT.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    messages = (user("q"), answer("<think>a"), user("q"), answer("<think>\na"), user("q"), answer("a"))
    assert learned(template, *messages) == ["<think>a<|im_end|>\n", "a<|im_end|>\n", "a<|im_end|>\n"]


class TestShortThoughts:
    MESSAGES = (
        user("q"),
        answer("the fox jumps", reasoning_content="fox"),
        user("q"),
        answer("the fox jumps", reasoning_content="fox"),
    )

    def test_answer_that_lost_one_is_not_learned(self) -> None:
        template, _ = templates()["qwen3"]
        marked = tokenizer(template).conversation(chat_of(list(self.MESSAGES)))
        assert (marked.counts["answers_trained"], marked.counts["answers_stripped"]) == (1, 1)
        assert marked.counts["reasoning_left_out"] == 0

    def test_template_without_reasoning_leaves_it_out(self) -> None:
        marked = tokenizer(OBJECT).conversation(chat_of(list(self.MESSAGES)))
        assert (marked.counts["answers_trained"], marked.counts["reasoning_left_out"]) == (2, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "", "reasoning": "lost"},
        {"reasoning_content": "written", "thinking": "lost"},
        {"reasoning_content": ["lost"]},
        {"reasoning": {"text": "lost"}},
        {"reasoning": [{"text": "lost"}]},
    ],
    ids=str,
)
class TestReasoningThatNoTemplateWrites:
    def test_its_answer_is_not_learned(self, fields: dict[str, Any]) -> None:
        template, _ = templates()["qwen3"]
        with pytest.raises(ValueError, match="leaves out a part of each answer, such as its reasoning"):
            tokenizer(template).conversation(chat_of([user("q"), answer("a", **fields)]))

    def test_template_without_reasoning_leaves_it_out(self, fields: dict[str, Any]) -> None:
        marked = tokenizer(OBJECT).conversation(chat_of([user("q"), answer("a", **fields)]))
        assert (marked.counts["answers_trained"], marked.counts["reasoning_left_out"]) == (1, 1)


@pytest.mark.parametrize(
    "fields", [{"thinking": True}, {"reasoning": {"tokens": 5, "effort": "high"}}, {"thinking": "r", "reasoning": "r"}]
)
def test_flags_and_equal_reasoning_are_no_loss(fields: dict[str, Any]) -> None:
    template, _ = templates()["qwen3"]
    marked = tokenizer(template).conversation(chat_of([user("q"), answer("a", **fields)]))
    assert marked.counts == {"answers": 1, "answers_trained": 1}


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("qwen3", [user("q"), answer("a")]),
        ("qwen3", [user("q"), answer("", tool_calls=[CALL]), RESULT, answer("a")]),
        ("llama3", [user("q"), answer("a")]),
        ("small: zephyr", [user("q"), answer("a")]),
    ],
)
def test_long_conversation_is_formatted_a_few_times(
    name: str, turns: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokenizer_for(CHATML)
    made.chat_template = templates()[name][0]
    calls = []
    formatted = made.apply_chat_template
    monkeypatch.setattr(made, "apply_chat_template", lambda *a, **k: calls.append(len(a[0])) or formatted(*a, **k))
    marked = HfTokenizer(made).conversation(chat_of(turns * 50))
    assert len(marked.spans) == 50 * len(turns) // 2
    assert sum(count == 50 * len(turns) for count in calls) <= 3


@pytest.mark.parametrize(
    ("text", "parts", "positions"),
    [
        ("<a>x<b>y<c>", ["<a>", "<b>", "<c>"], [0, 4, 8]),
        ("<a><b><c>", ["<a>", "<b>", "<c>"], [0, 3, 6]),
        ("<a>xx<a>y", ["<a>", "<a>", ""], [0, 5, 9]),
        ("ab", ["a", "b"], [0, 1]),
    ],
)
def test_positions_of_pieces_are_returned(text, parts, positions):
    assert aligned(text, parts) == positions


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<a>x<b>y<b>z<c>", ["<a>", "<b>", "<c>"]),
        ("<a>x<c>", ["<a>", "<b>", "<c>"]),
        ("x<a>", ["<a>", ""]),
        ("<a>x", ["<a>", "<b>"]),
        ("aba", ["ab", "ba"]),
        ("<b><a>", ["", "<a>", "<b>", ""]),
    ],
)
def test_several_ways_or_none_are_no_positions(text, parts):
    assert aligned(text, parts) is None
