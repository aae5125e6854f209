"""Chat templates that leave out what a conversation has."""

import json
import re
from pathlib import Path

import pytest

from tests.support.hf import TEMPLATE, train_tokenizer, write_lines
from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.spec.text_sources import FileSource
from worker.core.errors import RefusedError
from worker.data.chat_template import ChatTemplate
from worker.data.preference_rows import load_answers
from worker.data.text_examples import load_examples
from worker.data.tokenizers import HfTokenizer

CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
FIRST_CALL = "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}"
ONLY_WITHOUT_CONTENT = (
    "{% if not m.content %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endif %}"
)
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
USER = {"role": "user", "content": "1 and 2?"}


def message(*names: str, content: str | None = None) -> dict[str, object]:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def tokenizer(calls: str = "", tools: str = "") -> HfTokenizer:
    """Return a tokenizer whose template writes these parts of each message, and of the tools."""
    made = train_tokenizer([json.dumps([USER, TOOL])])
    made.chat_template = tools + TEMPLATE.replace("{{ m.content }}", "{{ m.content }}" + calls)
    return HfTokenizer(made)


def load(tmp_path: Path, which: HfTokenizer, *lines: dict[str, object], **options: object):
    path = str(write_lines(tmp_path / "chats.jsonl", lines))
    return load_examples(TextFiles(path=path, packing=False, **options), which, 200)


@pytest.mark.parametrize(
    ("calls", "answer"),
    [
        ("", message("add")),
        ("", message("add", content="Let me add.")),
        (FIRST_CALL, message("add", "sum")),
        (ONLY_WITHOUT_CONTENT, message("add", content="Let me add.")),
    ],
)
def test_template_without_the_calls_is_refused_with_line_and_remedy(calls, answer, tmp_path):
    good = {"messages": [USER, {"role": "assistant", "content": "3"}]}
    problem = "line 2: the model's chat template leaves out the `tool_calls` of message 2"
    with pytest.raises(RefusedError, match=problem) as error:
        load(tmp_path, tokenizer(calls), good, {"messages": [USER, answer]})
    assert "Use a model whose chat template writes `tool_calls`" in error.value.hint
    examples, notices = load(tmp_path, tokenizer(calls), good, {"messages": [USER, answer]}, on_bad_line="skip")
    assert (len(examples.rows), [notice.kind for notice in notices]) == (1, ["bad_lines_skipped"])


def test_template_with_the_calls_learns_them(tmp_path):
    which = tokenizer(CALLS)
    examples, notices = load(tmp_path, which, {"messages": [USER, message("add", "sum")]})
    (segment,) = examples.rows.segments(0)
    learned = which._tokenizer.decode(segment.tokens[segment.targets])
    assert re.findall('"name": "([a-z]+)"', learned) == ["add", "sum"]
    assert notices == []


def test_template_that_needs_the_calls_does_not_leave_them_out(tmp_path):
    strict = "{% if m.role == 'assistant' and not m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}" + CALLS
    assert len(load(tmp_path, tokenizer(strict), {"messages": [USER, message("add")]})[0].rows) == 1


def test_tools_that_the_template_leaves_out_are_counted(tmp_path):
    lines = [{"messages": [USER, message("add")], "tools": [TOOL]}] * 2
    plain = {"messages": [USER, {"role": "assistant", "content": "3"}]}
    _, (notice,) = load(tmp_path, tokenizer(CALLS), *lines, plain)
    assert (notice.kind, notice.level, notice.data) == (
        "tools_unused",
        "warning",
        {"count": "tools_unused", "number": 2},
    )
    assert "data.path: examples whose `tools` the chat template does not write" in notice.message
    assert load(tmp_path, tokenizer(CALLS, TOOLS), *lines, plain)[1] == []


def spaced_tokenizer() -> HfTokenizer:
    """Return a tokenizer whose prompts end with a space, which is in one token with the digit that follows."""
    made = train_tokenizer(["assistant: 3 assistant: 5"] * 9)
    made.chat_template = TEMPLATE.replace("|>", "|>: ")
    assert len(made(" 3")["input_ids"]) == 1
    return HfTokenizer(made)


def test_token_with_the_end_of_the_prompt_and_the_answer_is_learned(tmp_path):
    which = spaced_tokenizer()
    line = {"messages": [USER, {"role": "assistant", "content": "3"}] * 2}
    (segment,) = load(tmp_path, which, line)[0].rows.segments(0)
    assert which._tokenizer.decode(segment.tokens[segment.targets]) == " 3<|end|> 3<|end|>"
    (answer,) = which.encode([which.answer([USER], [{"role": "assistant", "content": "3"}])])
    assert which._tokenizer.decode(answer.tokens[answer.targets]) == " 3<|end|>"


STRIPPING = TEMPLATE.replace(
    "{{ m.content }}", "{{ m.content if loop.last or '</t>' not in m.content else m.content.split('</t>')[1] }}"
)


def thinking(*texts: str) -> dict[str, object]:
    return {"messages": [one for text in texts for one in (USER, {"role": "assistant", "content": f"<t>r</t>{text}"})]}


def test_answers_that_the_template_strips_are_counted(tmp_path):
    made = train_tokenizer(["a"])
    made.chat_template = STRIPPING.replace("</t>", "</think>").replace("<t>", "<think>")
    lines = [json.loads(json.dumps(thinking("3", "4", "5")).replace("t>", "think>")), thinking("6")]
    examples, (notice,) = load(tmp_path, HfTokenizer(made), *lines)
    assert (notice.kind, notice.level, notice.data) == (
        "answers_not_trained",
        "warning",
        {"count": "answers_stripped", "number": 2},
    )
    assert notice.message.endswith("such as the reasoning of an answer before the last: 2 of 4")
    (segment,) = examples.rows.segments(0)
    assert made.decode(segment.tokens[segment.targets]) == "<think>r</think>5<|end|>"


def test_conversation_that_begins_with_an_answer_does_not_learn_the_header(tmp_path):
    which = tokenizer()
    messages = [{"role": "assistant", "content": "Hello"}, USER, {"role": "assistant", "content": "3"}]
    (segment,) = load(tmp_path, which, {"messages": messages})[0].rows.segments(0)
    assert which._tokenizer.decode(segment.tokens[segment.targets]) == "Hello<|end|>3<|end|>"


def test_date_of_the_day_does_not_change_the_tokens():
    made = train_tokenizer(["a"])
    made.chat_template = "{{ strftime_now('%d %b %Y, %H:%M') }} " + TEMPLATE
    messages = [USER, {"role": "assistant", "content": "3"}]
    assert ChatTemplate(made).render(messages).startswith("26 Jul 2024, 00:00 <|user|>")


class TestPreferences:
    def load(self, tmp_path, which):
        pair = {
            "input": {"messages": [USER], "tools": [TOOL]},
            "preferred_output": [message("add")],
            "non_preferred_output": [{"role": "assistant", "content": "5"}],
        }
        source = FileSource(path=str(write_lines(tmp_path / "pairs.jsonl", [pair] * 3)))
        return load_answers("data.path", source, ["openai_preference"], which, 200)

    def test_template_without_the_calls_is_refused(self, tmp_path):
        with pytest.raises(RefusedError, match=r"line 1: .* leaves out the `tool_calls` of message 2") as error:
            self.load(tmp_path, tokenizer())
        assert "Use a model whose chat template" in error.value.hint

    def test_tools_that_the_template_leaves_out_are_counted(self, tmp_path):
        assert [notice.data for notice in self.load(tmp_path, tokenizer(CALLS)).notices] == [
            {"count": "tools_unused", "number": 3}
        ]
        assert self.load(tmp_path, tokenizer(CALLS, TOOLS)).notices == []
