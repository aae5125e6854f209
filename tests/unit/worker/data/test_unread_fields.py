"""Fields that a format does not read, for each reader and kind of file."""

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import hf
from trainyard.contract.spec.text_data import TextFiles
from worker.data.labelled_texts import load_labelled
from worker.data.preference_rows import load_answers
from worker.data.text_examples import DataAccess, load_examples
from worker.data.tokenizers import ByteTokenizer
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
    assert "fields that format completion does not read: `system`, `source`" in made.summary


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
