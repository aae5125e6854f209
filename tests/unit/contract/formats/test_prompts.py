"""Where a prompt ends and its answers begin: with a prompt of any form, and without one."""

import pytest

from trainyard.contract.formats.examples import Chat, Completion, parse_example
from trainyard.contract.formats.preferences import parse_preference
from trainyard.contract.formats.prompts import split_texts
from trainyard.contract.formats.records import BadRecordError

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Hi"}
NEXT = {"role": "user", "content": "And?"}
GOOD = {"role": "assistant", "content": "Hello"}
BAD = {"role": "assistant", "content": "Bye"}


def pair(record, format="preference"):
    preference = parse_preference(format, record, {})
    return preference.prompt, *preference.answers


def problem(record, format="preference"):
    with pytest.raises(BadRecordError) as caught:
        parse_preference(format, record, {})
    return str(caught.value)


class TestConversations:
    @pytest.mark.parametrize("prompt", [{}, {"prompt": None}, {"prompt": "Hi"}, {"prompt": "Hi\n"}, {"prompt": [USER]}])
    def test_answers_that_begin_with_the_prompt_are_cut(self, prompt):
        """As in ultrafeedback, in TRL's implicit prompts, and in both at once."""
        record = {"chosen": [USER, GOOD], "rejected": [USER, BAD], "messages": [USER, GOOD], "score_chosen": 9.0}
        assert pair(record | prompt) == ([USER], [GOOD], [BAD])

    @pytest.mark.parametrize("prompt", [{}, {"prompt": "Hi"}, {"prompt": "And?"}])
    def test_all_common_messages_are_the_prompt(self, prompt):
        common = [SYSTEM, USER, GOOD, NEXT]
        assert pair({"chosen": [*common, GOOD], "rejected": [*common, BAD], **prompt}) == (common, [GOOD], [BAD])

    def test_conversation_that_the_assistant_begins_has_its_prompt(self):
        common = [GOOD, USER]
        record = {"prompt": "Hi", "chosen": [*common, GOOD], "rejected": [*common, BAD]}
        assert pair(record) == (common, [GOOD], [BAD])

    def test_text_before_answers_is_a_message_of_the_user(self):
        assert pair({"prompt": "Hi", "chosen": [GOOD], "rejected": [BAD]}) == ([USER], [GOOD], [BAD])
        labelled = {"prompt": "Hi", "completion": [GOOD], "label": True}
        assert pair(labelled, "unpaired_preference") == ([USER], [GOOD])
        assert pair(labelled | {"completion": [USER, GOOD]}, "unpaired_preference") == ([USER], [GOOD])

    def test_equal_conversations_keep_their_last_answer(self):
        assert pair({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}) == ([USER], [GOOD], [GOOD])
        longer = [USER, GOOD, NEXT, BAD]
        assert pair({"chosen": [USER, GOOD], "rejected": longer}) == ([USER], [GOOD], [GOOD, NEXT, BAD])

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            ({"prompt": "Other", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "`chosen` begins with a message of"),
            ({"chosen": [GOOD], "rejected": [BAD]}, "have no common beginning that could be the prompt"),
            ({"chosen": [USER, GOOD], "rejected": [NEXT, BAD]}, "have no common beginning"),
            ({"chosen": [USER, GOOD], "rejected": "Bye"}, "`chosen` is missing, or is not a string"),
            ({"chosen": [USER, GOOD]}, "`rejected` is missing, or is not a list of messages"),
            ({"prompt": [USER], "chosen": "a", "rejected": "b"}, "`chosen` is a string, and `prompt` is a list"),
            ({"prompt": ["q"], "chosen": [GOOD], "rejected": "b"}, "`rejected` is a string, and `prompt` is a list"),
            ({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, NEXT, BAD]}, "`chosen` continues after the"),
            ({"prompt": 7, "chosen": "a", "rejected": "b"}, "`prompt` is neither a string nor a list of messages"),
            ({"prompt": [], "chosen": [GOOD], "rejected": [BAD]}, "`prompt` is neither a string nor a list"),
        ],
    )
    def test_unclear_prompt_is_refused_with_the_reason(self, record, reason):
        assert reason in problem(record)

    def test_one_answer_needs_its_prompt(self):
        record = {"completion": [USER, GOOD], "label": True}
        assert "`prompt` is missing; only two answers have" in problem(record, "unpaired_preference")


class TestTexts:
    @pytest.mark.parametrize(
        ("chosen", "rejected", "prompt"),
        [
            (
                "\n\nHuman: 2+2?\n\nAssistant: Four.",
                "\n\nHuman: 2+2?\n\nAssistant: Five.",
                "\n\nHuman: 2+2?\n\nAssistant:",
            ),
            ("Q: a\nA: helpful", "Q: a\nA: helpless", "Q: a\nA:"),
            ("Q: a\nA: yes", "Q: a\nA: yes, sir", "Q: a\nA: yes"),
            ("Q: a\nA: don't", "Q: a\nA: don", "Q: a\nA:"),
            ("Q\nyes", "Q\nno", "Q\n"),
            ("2? 14", "2? 15", "2?"),
            ("问题?答案一", "问题?答案二", "问题?"),
            ("a e\u0301", "a e\u0300", "a"),
            ("so 👍🏽", "so 👍🏿", "so"),
            ("same", "same", "same"),
        ],
    )
    def test_common_beginning_is_the_prompt_without_part_of_a_word(self, chosen, rejected, prompt):
        answers = (chosen.removeprefix(prompt), rejected.removeprefix(prompt))
        assert split_texts(chosen, rejected) == (prompt, answers)
        assert pair({"chosen": chosen, "rejected": rejected}) == (prompt, *answers)

    def test_texts_without_a_common_beginning_are_refused(self):
        assert "have no common beginning" in problem({"chosen": "Hello", "rejected": "Help"})
        assert pair({"prompt": "", "chosen": "Hello", "rejected": "Help"}) == ("", "Hello", "Help")


class TestMarks:
    def test_history_may_be_marked_and_an_answer_may_not_be_left_out(self):
        history = [USER, {**GOOD, "weight": 0}, {**NEXT, "train": False}]
        record = {"prompt": history, "chosen": [{**GOOD, "weight": 1}], "rejected": [BAD]}
        assert pair(record)[0] == [USER, GOOD, NEXT]
        reason = "leaves a message of `rejected` out of what is learned"
        assert reason in problem(record | {"rejected": [{**BAD, "train": False}]})
        assert "has a `weight` of message 2 of `prompt` that is not 0 or 1" in problem(
            record | {"prompt": [USER, {**GOOD, "weight": 3}, NEXT]}
        )
        assert "asks by `train` to learn message 1 of `prompt`" in problem(
            record | {"prompt": [{**USER, "train": True}]}
        )


class TestCompletions:
    def parse(self, prompt, completion, **more):
        return parse_example({"prompt": prompt, "completion": completion, **more}, "completion", {})

    def test_only_messages_of_the_completion_are_learned(self):
        chat = self.parse([USER, GOOD, NEXT], [BAD, NEXT, GOOD], tools=[{"name": "f"}])
        trained = (False, False, False, True, False, True)
        assert chat == Chat([USER, GOOD, NEXT, BAD, NEXT, GOOD], [{"name": "f"}], trained)
        assert self.parse("Hi", "Hello") == Completion("Hi", "Hello")
        assert self.parse("Hi", [GOOD]) == self.parse("Hi", [USER, GOOD]) == Chat([USER, GOOD], None, (False, True))

    def test_marks_are_honoured(self):
        chat = self.parse([USER, {**GOOD, "weight": 0}], [{**BAD, "train": False}, NEXT, GOOD])
        assert chat.trained == (False, False, False, False, True)

    @pytest.mark.parametrize(
        ("prompt", "completion", "reason"),
        [
            ([USER], "Hello", "does not have format `completion`"),
            ([USER], [], "does not have format `completion`"),
            ([], [GOOD], "does not have format `completion`"),
            (None, [GOOD], "does not have format `completion`"),
            ([USER], [NEXT, GOOD], "`completion` begins with a message of the role `user`"),
            ([USER], ["Hello"], "`completion.0` is not an object"),
            ([USER, {**GOOD, "train": True}], [GOOD], "asks to learn message 2 of the prompt"),
            ([USER], [{**GOOD, "weight": 0}], "has a completion of which every message of the assistant is left out"),
        ],
    )
    def test_what_is_wrong_is_stated(self, prompt, completion, reason):
        with pytest.raises(BadRecordError) as caught:
            self.parse(prompt, completion)
        assert reason in str(caught.value)
