"""Fields that a format does not read, for each reader and kind of file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import hf
from trainyard.contract.spec.text_data import TextFiles
from worker.data.labelled_texts import load_labelled
from worker.data.preference_rows import load_answers
from worker.data.text_examples import DataAccess, load_examples
from worker.data.tokenizers import ByteTokenizer, HfTokenizer
from worker.data.unread_fields import UnreadFields

PROMPT = {"prompt": "a", "completion": "b", "system": "Be brief.", "id": None}
PAIR = {"chosen": "The b", "rejected": "The c", "question": "a?", "system": None}


def account(data):
    made = []
    load_examples(data, ByteTokenizer(), 64, DataAccess(on_account=made.append))
    return made[0]


def test_values_of_lines_count(tmp_path):
    path = hf.write_lines(tmp_path / "a.jsonl", [PROMPT, {**PROMPT, "source": "x"}])
    made = account(TextFiles(path=str(path)))
    assert made.unread_fields == ["system", "source"]
    assert "fields of the records that the model does not see: `system`, `source`" in made.summary


def test_columns_of_tables_count(tmp_path):
    pq.write_table(pa.Table.from_pylist([PROMPT, {**PROMPT, "messages": [{"a": 1}]}]), tmp_path / "a.parquet")
    made = account(TextFiles(source="parquet", path=str(tmp_path / "a.parquet"), format="completion"))
    assert made.unread_fields == ["system", "id"]


def test_column_that_is_named_is_read(tmp_path):
    path = hf.write_lines(tmp_path / "a.jsonl", [{"question": "a", "prompt": "b", "completion": "c"}])
    assert account(TextFiles(path=str(path), columns={"prompt": "question"})).unread_fields == ["prompt"]


def test_preferences_have_them_too(tmp_path):
    made, path = [], str(hf.write_lines(tmp_path / "a.jsonl", [PAIR] * 2))
    access = DataAccess(on_account=made.append)
    load_answers("data.path", TextFiles(path=path), ["preference", "openai_preference"], ByteTokenizer(), 64, access)
    assert made[0].unread_fields == ["question"]


def test_labelled_texts_have_them_too(tmp_path):
    path = str(hf.write_lines(tmp_path / "a.jsonl", [{"text": "a", "label": name, "id": 1} for name in ("x", "y")]))
    made = []
    load_labelled(TextFiles(path=path), hf.train_tokenizer(["text"]), 16, access=DataAccess(on_account=made.append))
    assert made[0].unread_fields == ["id"]


def test_names_are_bounded_and_can_be_shown(tmp_path):
    path = hf.write_lines(
        tmp_path / "a.jsonl", [{"text": "a", "\x1b[2J": 1, "\ud800": 1, **dict.fromkeys(map(str, range(99)), 1)}]
    )
    made = account(TextFiles(path=str(path)))
    assert made.unread_fields == [str(number) for number in range(20)]


def test_number_of_different_fields_is_bounded():
    unread = UnreadFields(frozenset({"text"}))
    for number in range(3000):
        unread.add({"text": "a", f"f{number}": 1})
    unread.add("no object")
    assert len(unread.counts) == 1000


USER = {"role": "user", "content": "What?", "name": "ann", "id": 3}
ANSWER = {"role": "assistant", "content": "That.", "score": 5, "weight": 1, "refusal": None}
TURN = {"from": "human", "value": "What?", "weight": None, "name": "ann"}
NAMED = "{% for m in messages if m.role == 'user' %}<|user|>{{ m.name }}: {{ m.content }}{% endfor %}"


class TestMessages:
    def tokenizer(self, beginning=""):
        """Return a tokenizer whose template writes the names of users if it has this beginning."""
        fast = hf.train_tokenizer(["text"])
        if beginning:
            fast.chat_template = beginning + hf.TEMPLATE
        return HfTokenizer(fast)

    def account(self, tmp_path, records, tokenizer=None, **options):
        made, path = [], str(hf.write_lines(tmp_path / "a.jsonl", records))
        access = DataAccess(on_account=made.append)
        load_examples(TextFiles(path=path, **options), tokenizer or self.tokenizer(), 64, access)
        return made[0]

    def test_fields_that_the_template_does_not_write_are_named(self, tmp_path):
        made = self.account(tmp_path, [{"messages": [USER, ANSWER]}, {"messages": [USER, ANSWER], "id": 4}])
        assert sorted(made.unread_fields) == ["id", "messages.id", "messages.name", "messages.score"]
        assert "`messages.score`" in "".join(made.summary)

    def test_fields_that_it_writes_in_any_record_are_not(self, tmp_path):
        plain = {"messages": [{"role": "system", "content": "Be brief.", "name": "x"}, ANSWER]}
        records = [plain, {"messages": [USER, ANSWER], "name": "y"}, plain]
        made = self.account(tmp_path, records, self.tokenizer(NAMED))
        assert sorted(made.unread_fields) == ["messages.id", "messages.score", "name"]

    def test_columns_and_json_text_count(self, tmp_path):
        records = [{"turns": json.dumps([USER, ANSWER])}]
        made = self.account(tmp_path, records, format="chat", columns={"messages": "turns"})
        assert sorted(made.unread_fields) == ["turns.id", "turns.name", "turns.score"]

    def test_turns_have_no_other_fields(self, tmp_path):
        records = [{"conversations": [TURN, {"from": "gpt", "value": "That.", "loss": True}]}]
        assert self.account(tmp_path, records, self.tokenizer(NAMED)).unread_fields == ["conversations.name"]

    def test_completions_of_messages_count(self, tmp_path):
        made = self.account(tmp_path, [{"prompt": [USER], "completion": [ANSWER]}])
        assert sorted(made.unread_fields) == ["completion.score", "prompt.id", "prompt.name"]

    @pytest.mark.parametrize(
        ("record", "fields"),
        [
            (
                {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "No."}]},
                ["chosen.id", "chosen.name", "chosen.score", "rejected.id", "rejected.name", "rejected.score"],
            ),
            (
                {
                    "input": {"messages": [USER]},
                    "preferred_output": [ANSWER],
                    "non_preferred_output": [{"role": "assistant", "content": "No."}],
                },
                ["input.messages.id", "input.messages.name", "preferred_output.score"],
            ),
        ],
    )
    def test_preferences_count(self, tmp_path, record, fields):
        made, path = [], str(hf.write_lines(tmp_path / "a.jsonl", [record]))
        formats, access = ["preference", "openai_preference"], DataAccess(on_account=made.append)
        load_answers("data.path", TextFiles(path=path), formats, self.tokenizer(), 64, access)
        assert sorted(made[0].unread_fields) == fields
