"""The formats of examples: what each takes, and how what it does not take is described."""

import pytest

from trainyard.contract.formats.detection import detect_format
from trainyard.contract.formats.examples import Chat, Completion, Instruction, parse_example
from trainyard.contract.formats.preferences import parse_preference
from trainyard.contract.formats.records import BadRecordError

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}


def chat(*messages, **more):
    return parse_example({"messages": list(messages), **more}, "chat", {})


def problem(record, format="chat", **columns):
    with pytest.raises(BadRecordError) as caught:
        parse_example(record, format, columns)
    return str(caught.value)


class TestDetection:
    @pytest.mark.parametrize(
        ("record", "format"),
        [
            ({"text": "a"}, "text"),
            ({"prompt": "a", "completion": "b"}, "completion"),
            ({"messages": [USER, ANSWER]}, "chat"),
            ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "sharegpt"),
            ({"instruction": "a", "output": "b"}, "alpaca"),
            ({"instruction": "a", "input": "c", "output": "b", "text": None}, "alpaca"),
        ],
    )
    def test_format_is_that_of_the_fields(self, record, format):
        assert detect_format(record, {}) == format

    def test_mapped_columns_count(self):
        assert detect_format({"question": "a", "answer": "b"}, {"prompt": "question", "completion": "answer"}) == (
            "completion"
        )

    def test_invalid_record_has_its_problem_in_the_message(self):
        record = {"messages": [USER, {"role": "assistant", "content": [{"type": "image_url"}]}]}
        with pytest.raises(BadRecordError, match="has a part of message 2 that is not text"):
            detect_format(record, {})

    @pytest.mark.parametrize("record", [{}, {"question": "a"}, [], "text", 1, None, {"text": 1}])
    def test_other_records_have_none_of_the_formats(self, record):
        with pytest.raises(BadRecordError, match="has none of the known formats: expected one JSON object with `text`"):
            detect_format(record, {})


class TestChat:
    def test_roles_and_texts_are_taken_as_they_are(self):
        example = chat({"role": "system", "content": "Be kind."}, USER, ANSWER)
        assert example == Chat([{"role": "system", "content": "Be kind."}, USER, ANSWER], None, (False, False, True))

    def test_parts_of_text_are_joined(self):
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        assert chat(USER, {"role": "assistant", "content": parts}).messages[1]["content"] == "Hello"

    @pytest.mark.parametrize(("weight", "trained"), [(0, False), (1, True), (None, True), (0.0, False), (1.0, True)])
    def test_weight_of_a_message_decides_whether_it_is_trained(self, weight, trained):
        example = chat(USER, {**ANSWER, "weight": weight}, USER, ANSWER)
        assert example.trained == (False, trained, False, True)
        assert example.messages[1] == ANSWER

    @pytest.mark.parametrize("field", ["train", "loss"])
    @pytest.mark.parametrize(("mark", "trained"), [(False, False), (True, True), (None, True), (0.0, False), (1, True)])
    def test_mark_of_other_trainers_decides_it_too(self, field, mark, trained):
        example = chat({**USER, field: False}, {**ANSWER, field: mark}, {**USER, "weight": 0}, ANSWER)
        assert example.trained == (False, trained, False, True)
        assert example.messages == [USER, ANSWER, USER, ANSWER]

    @pytest.mark.parametrize("field", ["weight", "train", "loss"])
    def test_message_of_another_role_cannot_be_learned(self, field):
        message = problem({"messages": [{**USER, field: 1}, ANSWER]})
        assert message == (
            f"asks by `{field}` to learn message 1, which is of the role `user`; only messages of the assistant are "
            "learned"
        )
        turns = [{"from": "human", "value": "a", field: 1}, {"from": "gpt", "value": "b"}]
        assert problem({"conversations": turns}, "sharegpt") == message

    @pytest.mark.parametrize(
        ("field", "text"), [("weight", "weight 0"), ("train", "`train: false`"), ("loss", "`loss: false`")]
    )
    def test_field_that_leaves_all_answers_out_is_named(self, field, text):
        expected = f"has {text} on every message of the assistant"
        assert problem({"messages": [USER, {**ANSWER, field: False}]}) == expected

    def test_marks_that_contradict_are_named(self):
        message = problem({"messages": [USER, {**ANSWER, "train": True, "loss": False}]})
        assert message == "has a `train` and a `loss` of message 2 that contradict each other"

    def test_equal_statements_agree(self):
        assert chat(USER, {**ANSWER, "weight": 0, "train": False}, ANSWER).trained == (False, False, True)

    def test_calls_of_tools_keep_their_arguments_and_have_empty_content(self):
        example = chat(USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, tools=[{"name": "add"}])
        call = example.messages[1]["tool_calls"][0]
        assert example.messages[1]["content"] == ""
        assert call == CALL
        assert example.tools == [{"name": "add"}]

    def test_nulls_in_arguments_are_values(self):
        called = {**CALL, "function": {"name": "add", "arguments": {"a": 1, "b": None, "c": [{"d": None}]}}}
        example = chat(USER, {"role": "assistant", "content": None, "tool_calls": [called | {"index": None}]})
        assert example.messages[1]["tool_calls"] == [called]

    def test_nulls_that_tables_have_for_absent_fields_are_left_out(self):
        filled = [{**message, "tool_calls": None, "name": None, "weight": None} for message in (USER, ANSWER)]
        assert chat(*filled, tools=None) == chat(USER, ANSWER)
        tool = {"name": "add", "parameters": {"properties": {"a": {"type": "number", "enum": None}}}}
        assert chat(USER, ANSWER, tools=[tool]).tools == [
            {"name": "add", "parameters": {"properties": {"a": {"type": "number"}}}}
        ]

    def test_lists_may_be_json_text(self):
        record = {"messages": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]'}
        assert parse_example(record | {"tools": '[{"name": "f"}]'}, "chat", {}) == chat(
            USER, ANSWER, tools=[{"name": "f"}]
        )

    @pytest.mark.parametrize(
        ("messages", "message"),
        [
            ([USER], "does not have format `chat`"),
            ([], "does not have format `chat`"),
            ("no", "does not have format `chat`"),
            ([USER, {"role": "robot", "content": "x"}], "does not have format `chat`"),
            ([USER, {"role": "assistant"}], "does not have format `chat`"),
            ([{"role": "user", "content": None}, ANSWER], "does not have format `chat`"),
            ([USER, {**ANSWER, "content": [{"type": "image_url"}]}], "has a part of message 2 that is not text"),
            ([USER, {**ANSWER, "weight": 0}], "has weight 0 on every message of the assistant"),
            ([USER, {**ANSWER, "weight": 0.5}], "has a `weight` of message 2 that is not 0 or 1"),
            ([USER, {**ANSWER, "weight": "1"}], "has a `weight` of message 2 that is not 0 or 1"),
            ([USER, {**ANSWER, "weight": float("nan")}], "has a `weight` of message 2 that is not 0 or 1"),
            ([USER, {**ANSWER, "train": "false"}], "has a `train` of message 2 that is not true or false"),
            ([USER, {**ANSWER, "train": 2}], "has a `train` of message 2 that is not true or false"),
            ([{**USER, "train": []}, ANSWER], "has a `train` of message 1 that is not true or false"),
            (
                [USER, {**ANSWER, "train": True, "weight": 0}],
                "has a `weight` and a `train` of message 2 that contradict",
            ),
            ([USER, {**ANSWER, "train": False}], "has `train: false` on every message of the assistant"),
            (
                [USER, {**ANSWER, "train": False}, {**ANSWER, "weight": 0}],
                "has `train: false` or weight 0 on every message of the assistant",
            ),
            (
                [USER, {**ANSWER, "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}],
                "has a `train_detail` of message 2; only whole messages can be learned or left out",
            ),
            (
                [{"role": "human", "content": "x"}, ANSWER],
                "no `role` of system, user, assistant, tool, developer; write",
            ),
            ([USER, {**ANSWER, "tool_calls": "x"}], "has `tool_calls` of message 2 that are not a list"),
            ([USER, {**ANSWER, "tool_calls": [{}]}], "without `function.name`"),
            ([USER, {"role": "assistant", "content": None, "function_call": {}}], "write it as `tool_calls`"),
            (
                [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
                "whose arguments are not JSON",
            ),
            *(
                (
                    [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}],
                    "whose arguments are not JSON",
                )
                for arguments in ('{"a": NaN}', '{"a": 1e400}', '{"a": -Infinity}', {"a": [float("nan")]}, {"a": b"b"})
            ),
            *(
                (
                    [USER, {**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}],
                    "whose arguments are not a JSON object",
                )
                for arguments in ("[1]", "null", '"{}"', [("a", "1")], 5, True)
            ),
        ],
    )
    def test_what_is_wrong_is_stated(self, messages, message):
        assert message in problem({"messages": messages})

    @pytest.mark.parametrize(
        ("record", "format", "wrong"),
        [
            ({"instruction": "i"}, "alpaca", "`output` is missing"),
            ({"instruction": "i", "output": 4}, "alpaca", "`output` is not a string"),
            ({"instruction": "i", "output": "o", "input": ["a"]}, "alpaca", "`input` is not a string"),
            ({"prompt": "p", "response": "c"}, "completion", "`completion` is missing"),
            ({"prompt": None, "completion": "c"}, "completion", "`prompt` is missing"),
            ({"prompt": [], "completion": [ANSWER]}, "completion", "`prompt` is missing"),
            ({"prompt": "p", "completion": 1}, "completion", "`completion` is neither a string nor a list of messages"),
            ({"prompt": [USER], "completion": "c"}, "completion", "`prompt` is a list, but `completion` is a string"),
        ],
    )
    def test_the_field_that_lacks_a_text_is_named(self, record, format, wrong):
        with pytest.raises(BadRecordError) as caught:
            parse_example(record, format, {})
        assert str(caught.value).endswith(f"; {wrong}")

    @pytest.mark.parametrize("tools", ["x", [1], {"name": "f"}])
    def test_tools_are_objects(self, tools):
        assert "has `tools` that are not a list of objects" in problem({"messages": [USER, ANSWER], "tools": tools})

    def test_half_of_a_surrogate_pair_is_detected_anywhere(self):
        half = "\ud83d"
        records = [
            {"messages": [USER, {**ANSWER, "content": half}]},
            {"messages": [{**USER, "name": half}, ANSWER]},
            {"messages": [USER, ANSWER], "tools": [{"name": half}]},
            {"messages": [USER, ANSWER], "tools": [{half: "a"}]},
        ]
        assert {problem(record) for record in records} == {"has half of a surrogate pair, which is no character"}


class TestOthers:
    def test_sharegpt_is_a_chat(self):
        turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
        system = {"role": "system", "content": "S"}
        assert parse_example({"conversations": turns}, "sharegpt", {}) == chat(system, USER, ANSWER)

    def test_sharegpt_has_weights_too(self):
        turns = [{"from": "human", "value": "a"}, *({"from": "gpt", "value": "b", "weight": n} for n in (0, 1))]
        assert parse_example({"conversations": turns}, "sharegpt", {}).trained == (False, False, True)

    def test_turns_with_roles_have_their_remedy(self):
        assert "set data.format: chat and data.columns: {messages: conversations}" in problem(
            {"conversations": [USER, ANSWER]}, "sharegpt"
        )
        assert parse_example({"conversations": [USER, ANSWER]}, "chat", {"messages": "conversations"}) == chat(
            USER, ANSWER
        )

    def test_unknown_speaker_lists_the_known_ones(self):
        turns = [{"from": "human", "value": "a"}, {"from": "function_call", "value": "b"}]
        assert "has a `from` that is none of human, user, gpt" in problem({"conversations": turns}, "sharegpt")

    @pytest.mark.parametrize("given", ["", None])
    def test_alpaca_without_input_has_two_headings(self, given):
        example = parse_example({"instruction": "Add", "input": given, "output": "3"}, "alpaca", {})
        assert example == Instruction("Add", "", "3")
        assert example.as_completion == Completion("### Instruction:\nAdd\n\n### Response:\n", "3")
        assert example.as_chat == Chat(
            [{"role": "user", "content": "Add"}, {"role": "assistant", "content": "3"}], None, (False, True)
        )

    def test_alpaca_with_input_has_it_after_the_instruction(self):
        example = Instruction("Add", "1 and 2", "3")
        assert example.as_completion.prompt == "### Instruction:\nAdd\n\n### Input:\n1 and 2\n\n### Response:\n"
        assert example.as_chat.messages[0]["content"] == "Add\n\n1 and 2"

    @pytest.mark.parametrize(
        ("record", "format"),
        [
            ({"text": None}, "text"),
            ({"prompt": "a", "completion": 1}, "completion"),
            ({"instruction": "a", "input": 1, "output": "b"}, "alpaca"),
            ({"conversations": [{"from": "gpt"}]}, "sharegpt"),
        ],
    )
    def test_record_without_its_fields_does_not_have_the_format(self, record, format):
        assert problem(record, format).startswith(f"does not have format `{format}`: expected one JSON object with")

    def test_mapped_columns_are_read(self):
        assert parse_example({"body": "x", "text": "y"}, "text", {"text": "body"}) == "x"


CALLING = (USER, {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": None})


def pair(*answer, **source):
    source = {"messages": list(CALLING), "tools": '[{"name": "add"}]', **source}
    return {"input": source, "preferred_output": list(answer), "non_preferred_output": [ANSWER]}


class TestMessagesOfPreferences:
    def test_messages_and_tools_are_those_of_conversations(self):
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        record = pair({**ANSWER, "content": parts})
        preference = parse_preference("openai_preference", record, {})
        same = chat(*CALLING, tools=[{"name": "add"}])
        assert (preference.prompt, preference.tools) == (same.messages, same.tools)
        assert preference.answers == ([ANSWER], [ANSWER])

    @pytest.mark.parametrize(
        ("record", "expected"),
        [
            (pair({"role": "assistant"}), "`preferred_output.0` has no `content`"),
            (pair({"role": "bot"}), "`preferred_output.0` has no `role` of system, user"),
            (pair("Hi"), "`preferred_output.0` is not an object"),
            (pair(USER), "`preferred_output` begins with a message of the role `user`"),
            (pair(), "`preferred_output` is missing, or is not a list of messages"),
            (pair(ANSWER, messages=[{"role": "user"}]), "`messages.0` has no `content`"),
            (pair(ANSWER, tools=[1]), "has `tools` that are not a list of objects"),
            (
                pair({**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
                "in message 1 of `preferred_output` whose arguments are not JSON",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, record, expected):
        with pytest.raises(BadRecordError) as caught:
            parse_preference("openai_preference", record, {})
        assert expected in str(caught.value)
