"""Sources of texts: kinds of files that hold the same rows, several files, bad lines and held-out fractions."""

import json
import multiprocessing
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.text_data import TextFiles, TextMixture
from worker.core.errors import RefusedError
from worker.data import bad_records, build_tokens, data_files, records
from worker.data.text_examples import DataAccess, load_examples
from worker.data.tokenizers import ByteTokenizer

ROWS = [{"prompt": f"{n}+{n} = ", "completion": str(2 * n) * (n % 7 + 1)} for n in range(500)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=37)


def write_arrow_file(path, rows):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=41)


def write_arrow_stream(path, rows):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=41)


def write_dataset(folder, rows):
    """Write what `datasets.save_to_disk` does."""
    folder.mkdir()
    names = [f"data-{part:05d}-of-00002.arrow" for part in range(2)]
    for part, name in enumerate(names):
        write_arrow_stream(folder / name, rows[part * 250 : (part + 1) * 250])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")


def write_array(path, rows):
    path.write_text(json.dumps(rows))


def write_indented_array(path, rows):
    """Write as editors of another system do."""
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(rows, indent=2).replace("\n", "\r\n").encode() + b"\r\n\r\n")


KINDS = {
    "jsonl": ("jsonl", write_jsonl),
    "array": ("jsonl", write_array),
    "indented array": ("jsonl", write_indented_array),
    "parquet": ("parquet", write_parquet),
    "arrow file": ("arrow", write_arrow_file),
    "arrow stream": ("arrow", write_arrow_stream),
    "dataset": ("dataset", write_dataset),
}


def load(data, length=32, **access):
    return load_examples(data, ByteTokenizer(), length, DataAccess(**access))


def rows_of(examples):
    return [[segment.tokens.tolist() for segment in examples.rows.segments(row)] for row in range(len(examples.rows))]


def texts_of(examples):
    return [bytes(tokens).decode() for row in rows_of(examples) for tokens in row]


def refusal(data, **access):
    with pytest.raises(RefusedError) as caught:
        load(data, **access)
    return caught.value


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(records, "CHUNK_BYTES", 2**10)
    monkeypatch.setattr("worker.data.arrow_tables.CHUNK_BYTES", 2**10)


class TestKinds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_same_rows_whatever_the_kind_of_file(self, tmp_path, kind, small_chunks):
        write_jsonl(tmp_path / "expected", ROWS)
        expected, _ = load(TextFiles(path=str(tmp_path / "expected")))
        source, write = KINDS[kind]
        write(tmp_path / "data", ROWS)
        examples, _ = load(TextFiles(source=source, path=str(tmp_path / "data")))
        assert rows_of(examples) == rows_of(expected)
        assert examples.rows.weights.tolist() == expected.rows.weights.tolist()

    @pytest.mark.parametrize("kind", KINDS)
    def test_columns_are_named_and_others_ignored(self, tmp_path, kind):
        source, write = KINDS[kind]
        write(tmp_path / "data", [{"id": n, "body": f"text {n}"} for n in range(5)])
        examples, _ = load(TextFiles(source=source, path=str(tmp_path / "data"), columns={"text": "body"}))
        assert sorted(texts_of(examples)) == [f"text {n}\0" for n in range(5)]

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][0] != "jsonl"])
    def test_table_without_the_columns_lists_its_own(self, tmp_path, kind):
        source, write = KINDS[kind]
        write(tmp_path / "data", [{"question": "a"}])
        error = refusal(TextFiles(source=source, path=str(tmp_path / "data")))
        assert "has none of the columns of the known formats; it has `question`" in str(error)

    @pytest.mark.parametrize("source", ["parquet", "arrow"])
    @pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1\0\0", b'{"text": "a"}\n' * 50])
    def test_file_of_another_kind_is_refused(self, tmp_path, source, content):
        (tmp_path / "data").write_bytes(content)
        assert f"{tmp_path}/data is not a" in str(refusal(TextFiles(source=source, path=str(tmp_path / "data"))))

    @pytest.mark.parametrize(
        ("start", "expected", "hint"),
        [
            (b"PAR1", "is a Parquet file", "source: parquet"),
            (b"ARROW1\0\0", "is an Arrow file", "source: arrow"),
            (b"\x1f\x8b\x08", "is compressed", "Decompress"),
            (b"\x28\xb5\x2f\xfd", "is compressed", "Decompress"),
            (b"PK\x03\x04", "is compressed", "Decompress"),
            (b"\xff\xfe{\0", "is text in UTF-16", "UTF-8"),
        ],
    )
    def test_what_holds_no_lines_has_its_remedy(self, tmp_path, start, expected, hint):
        (tmp_path / "data").write_bytes(start + b'\n{"text": "a"}\n')
        error = refusal(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert (expected in str(error), hint in error.hint) == (True, True)

    def test_first_line_of_another_kind_of_text_has_its_remedy(self, tmp_path):
        (tmp_path / "data").write_text("prompt,completion\na,b\n")
        assert "CSV and plain text are not read" in str(refusal(TextFiles(path=str(tmp_path / "data"))))

    def test_truncated_table_is_refused(self, tmp_path):
        write_parquet(tmp_path / "whole", ROWS)
        (tmp_path / "data").write_bytes((tmp_path / "whole").read_bytes()[:-20])
        assert "is not a Parquet file" in str(refusal(TextFiles(source="parquet", path=str(tmp_path / "data"))))

    def test_folder_with_splits_names_them(self, tmp_path):
        (tmp_path / "dataset_dict.json").write_text("{}")
        for name in ("train", "test"):
            (tmp_path / name).mkdir()
        error = refusal(TextFiles(source="dataset", path=str(tmp_path)))
        assert "holds several splits: test, train" in str(error)

    @pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "", "a/b", 3])
    def test_state_of_a_data_set_names_only_files_of_its_folder(self, tmp_path, name):
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        assert "is not that of a saved data set" in str(refusal(TextFiles(source="dataset", path=str(tmp_path))))

    def test_pyarrow_is_named_where_it_is_missing(self, tmp_path, monkeypatch):
        write_parquet(tmp_path / "data", ROWS)
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        error = refusal(TextFiles(source="parquet", path=str(tmp_path / "data")))
        assert "needs pyarrow" in str(error)
        assert "trainyard[data]" in error.hint


class TestFiles:
    def test_files_are_read_in_the_order_of_names_and_of_lists(self, tmp_path):
        for name in ("b", "a", "c"):
            write_jsonl(tmp_path / f"{name}.jsonl", [{"text": name}])
        pattern = str(tmp_path / "*.jsonl")
        assert texts_of(load(TextFiles(path=pattern, packing=False))[0]) == ["a\0", "b\0", "c\0"]
        listed = (str(tmp_path / "c.jsonl"), str(tmp_path / "[ab].jsonl"))
        assert texts_of(load(TextFiles(path=listed, packing=False))[0]) == ["c\0", "a\0", "b\0"]

    def test_file_with_the_signs_of_a_pattern_in_its_name_is_read(self, tmp_path):
        write_jsonl(tmp_path / "a[1].jsonl", [{"text": "own"}])
        write_jsonl(tmp_path / "a1.jsonl", [{"text": "other"}])
        assert texts_of(load(TextFiles(path=str(tmp_path / "a[1].jsonl")))[0]) == ["own\0"]

    def test_pattern_without_files_is_refused(self, tmp_path):
        assert "no file matches" in str(refusal(TextFiles(path=str(tmp_path / "*.jsonl"))))

    def test_folder_is_refused_with_a_pattern(self, tmp_path):
        error = refusal(TextFiles(path=str(tmp_path)))
        assert f"{tmp_path} is a folder" in str(error)
        assert f"{tmp_path}/*" in error.hint

    def test_each_file_of_a_pattern_must_be_below_the_roots(self, tmp_path):
        allowed, secret = tmp_path / "allowed", tmp_path / "secret"
        allowed.mkdir()
        secret.mkdir()
        write_jsonl(secret / "x", [{"text": "secret"}])
        write_jsonl(allowed / "a.jsonl", [{"text": "a"}])
        (allowed / "b.jsonl").symlink_to(secret / "x")
        roots = AllowedRoots(allowed=(str(allowed),))
        assert "b.jsonl leads out of the folders" in str(refusal(TextFiles(path=str(allowed / "*.jsonl")), roots=roots))

    @pytest.mark.parametrize("named", [".aws/a.jsonl", "[.]aws/*.jsonl", "link.jsonl", "linked/a.jsonl", ".a.jsonl"])
    def test_hidden_files_are_refused(self, tmp_path, named):
        (tmp_path / ".aws").mkdir()
        for name in (".aws/a.jsonl", ".a.jsonl"):
            write_jsonl(tmp_path / name, [{"text": "secret"}])
        (tmp_path / "link.jsonl").symlink_to(tmp_path / ".aws" / "a.jsonl")
        (tmp_path / "linked").symlink_to(tmp_path / ".aws")
        error = refusal(TextFiles(path=str(tmp_path / named)), roots=AllowedRoots(allowed=(str(tmp_path),)))
        assert re.search(r"^data\.path: .*(has the hidden name `\.a|no file matches)", str(error))

    def test_file_that_changes_while_it_is_read_is_refused(self, tmp_path, monkeypatch):
        path = tmp_path / "data"
        write_jsonl(path, [{"text": "a"}])
        examined = data_files.find_files

        def find_then_change(*arguments):
            matches = examined(*arguments)
            write_jsonl(path, [{"text": "b"}, {"text": "c"}])
            return matches

        monkeypatch.setattr("worker.data.text_examples.find_files", find_then_change)
        assert f"{path} changed while it was read" in str(refusal(TextFiles(path=str(path))))

    def test_parts_of_a_file_hold_each_line_once(self, tmp_path, small_chunks):
        lines = [{"text": "x" * (n * 37 % 3000)} for n in range(200)]
        write_jsonl(tmp_path / "data", lines)
        examples, _ = load(TextFiles(path=str(tmp_path / "data"), packing=False), length=4000)
        assert texts_of(examples) == [line["text"] + "\0" for line in lines if line["text"]]

    @pytest.mark.cpu_seconds(8)
    def test_processes_make_the_same_rows_and_end(self, tmp_path, small_chunks, monkeypatch):
        write_jsonl(tmp_path / "data", ROWS)
        data = TextFiles(path=str(tmp_path / "data"))
        alone = load(data)[0]
        monkeypatch.setattr(build_tokens, "_SERIAL_BYTES", 0)
        monkeypatch.setattr(build_tokens, "usable_processors", lambda: 2)
        together = load(data)[0]
        assert multiprocessing.active_children() == []
        assert rows_of(together) == rows_of(alone)
        assert together.digest == alone.digest


DEEP = "[" * 100_000 + "]" * 100_000
BAD = {
    "not JSON": ('{"text": "a" "b"}', "is not JSON: Expecting ',' delimiter at character 14"),
    "no object": ("[1]", "does not have format `text`"),
    "null": ("null", "does not have format `text`"),
    "wrong type": ('{"text": 5}', "does not have format `text`"),
    "missing field": ('{"body": "x"}', "does not have format `text`"),
    "half of a pair": ('{"text": "\\ud83d"}', "has half of a surrogate pair"),
    "too deep": (f'{{"text": {DEEP}}}', "is nested too deeply"),
    "long number": (f'{{"text": {"9" * 10_000}}}', "is not JSON"),
    "not UTF-8": (b'{"text": "\xff\xfe"}', "is not JSON in UTF-8: byte 11 is not valid"),
}


LINES = 1_000


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """1,000 lines in several parts, one of each bad kind among them, at lines 101, 201, and so on."""
    path = tmp_path_factory.mktemp("long") / "data.jsonl"
    bad = {(number + 1) * 100: line for number, (line, _) in enumerate(BAD.values())}
    with path.open("wb") as file:
        for number in range(LINES):
            line = bad.get(number, f'{{"text": "line {number}"}}')
            file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    return path


class TestBadLines:
    def test_every_kind_is_skipped_and_named_with_its_line(self, long_file, small_chunks):
        examples, notices = load(TextFiles(path=str(long_file), on_bad_line="skip", packing=False))
        assert examples.train == LINES - len(BAD)
        (notice,) = notices
        assert (notice.kind, notice.level, notice.data["skipped"]) == ("bad_lines_skipped", "warning", len(BAD))
        for number, (named, (_, message)) in enumerate(zip(notice.data["first"], BAD.values(), strict=True), 1):
            assert named["line"] == number * 100 + 1
            assert named["problem"].startswith(message)
            assert f"{long_file}, line {named['line']} {message}" in notice.message

    def test_the_first_is_refused_with_its_line(self, long_file, small_chunks):
        error = refusal(TextFiles(path=str(long_file)))
        reason = "is not JSON: Expecting ',' delimiter at character 14: expected one JSON object with `text`, a string"
        first = f"data.path: 9 of 1000 lines are bad: {long_file}, line 101 {reason}; line 201 does not have"
        assert str(error).startswith(first)
        assert str(error).count("line ") == 9
        assert str(error).count("expected one JSON object") == 1
        assert (
            error.hint == "Correct that line, or set data.format, or data.columns if the fields have other names. "
            "To leave bad lines out, set data.on_bad_line: skip."
        )

    def test_more_than_the_limit_are_refused(self, long_file, small_chunks):
        error = refusal(TextFiles(path=str(long_file), on_bad_line="skip", max_bad_lines=3))
        assert str(error).startswith("data.path: more than 3 bad lines (data.max_bad_lines), the first of which are: ")
        assert str(error).count(", line ") == 4

    def test_many_are_counted_up_to_a_limit(self, tmp_path):
        (tmp_path / "data").write_text('{"text": "a"}\n' + '{"text": 7}\n' * 2000)
        message = str(refusal(TextFiles(path=str(tmp_path / "data"))))
        assert message.startswith("data.path: more than 1000 of the first 1002 lines are bad: ")
        assert message.count(": the same") == 9

    def test_a_single_one_is_not_counted(self, tmp_path):
        (tmp_path / "data").write_text("{}\n")
        assert str(refusal(TextFiles(path=str(tmp_path / "data")))).startswith(
            f"data.path: {tmp_path}/data, line 1 has "
        )

    def test_counting_ends_after_a_time(self, tmp_path, small_chunks, monkeypatch):
        write_jsonl(tmp_path / "data", [{"text": "a"}, {"text": 7}] * 200)
        monkeypatch.setattr(bad_records, "_SECONDS", -1.0)
        message = str(refusal(TextFiles(path=str(tmp_path / "data"))))
        assert re.search(r"at least \d+ of the first \d+ lines are bad", message)

    def test_record_of_two_formats_is_refused_wherever_it_is(self, tmp_path):
        both = {"text": "a", "prompt": "b", "completion": "c"}
        problem = "has the fields of `text` and of `completion`; set data.format to `text` or `completion`"
        for number, rows in enumerate(([both, {"text": "x"}], [{"text": "x"}, both], [{"text": "x"}] * 2 + [both])):
            write_jsonl(tmp_path / "data", rows)
            error = refusal(TextFiles(path=str(tmp_path / "data")))
            assert f"line {(1, 2, 3)[number]} {problem}" in str(error)
            assert "Set data.format to `text` or `completion`." in error.hint
            assert load(TextFiles(path=str(tmp_path / "data"), format="text", packing=False))[0].train == len(rows)

    def test_skipping_is_no_remedy_for_a_first_record_of_two_formats(self, tmp_path):
        both = {"instruction": "a", "output": "b", "text": "c"}
        write_jsonl(tmp_path / "data", [both, both, {**both, "output": ""}])
        error = refusal(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert error.hint == "Set data.format to `text` or `alpaca`."

    def test_field_to_set_is_that_of_the_source(self, tmp_path):
        good, both = tmp_path / "good", tmp_path / "data.format"
        write_jsonl(good, [{"text": "x"}])
        write_jsonl(both, [{"text": "a", "prompt": "b", "completion": "c"}])
        error = refusal(TextMixture(sources=({"path": str(good)}, {"path": str(both)})))
        assert str(error).endswith("; set data.sources.1.format to `text` or `completion`")
        assert error.hint.startswith("Set data.sources.1.format to")
        assert str(both) in str(error)
        error = refusal(TextFiles(path=str(good), eval_sets={"a.b": {"path": str(both)}}))
        assert "data.eval_sets.a.b.format to `text` or `completion`" in str(error)

    def test_rows_of_tables_of_two_formats_are_refused(self, tmp_path):
        rows = [{"text": "x", "prompt": None, "completion": None}, {"text": "a", "prompt": "b", "completion": "c"}]
        write_parquet(tmp_path / "data", rows)
        data = TextFiles(source="parquet", path=str(tmp_path / "data"))
        assert "row 2 has the fields of `text` and of `completion`" in str(refusal(data))
        assert load(data.model_copy(update={"format": "text"}))[0].train

    @pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
    def test_each_kind_is_named_in_a_message(self, tmp_path, line, message):
        (tmp_path / "data").write_bytes(b'{"text": "a"}\n\n' + (line if isinstance(line, bytes) else line.encode()))
        assert f"{tmp_path}/data, line 3 {message}" in str(refusal(TextFiles(path=str(tmp_path / "data"))))

    def test_problem_that_starts_at_a_character_is_reported_once(self, tmp_path):
        (tmp_path / "data").write_text('{"text": "a')
        message = "line 1 is not JSON: Unterminated string starting at character 10: expected"
        assert message in str(refusal(TextFiles(path=str(tmp_path / "data"))))

    def test_only_ten_are_named(self, tmp_path):
        (tmp_path / "data").write_text('{"text": "a"}\n' + "{\n" * 15)
        _, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert len(notice.data["first"]) == 10
        assert notice.message.endswith(", and 5 more")

    def test_one_bad_line_is_no_plural(self, tmp_path):
        (tmp_path / "data").write_text('{"text": "a"}\n{\n')
        _, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert notice.message.startswith("data.path: 1 bad line was skipped: ")
        (tmp_path / "data").write_text('{"text": "a"}\n{\n{\n')
        error = refusal(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip", max_bad_lines=1))
        assert str(error).startswith("data.path: more than 1 bad line (data.max_bad_lines), ")

    def test_skipping_is_no_remedy_if_no_line_has_a_format(self, tmp_path):
        (tmp_path / "data").write_text('{"a": 1}\n{"a": 2}\n')
        assert "on_bad_line" not in refusal(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip")).hint
        assert "on_bad_line: skip" in refusal(TextFiles(path=str(tmp_path / "data"))).hint

    def test_line_that_is_too_long_is_not_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr(records, "MAX_LINE_BYTES", 2**20)
        (tmp_path / "data").write_text('{"text": "a"}\n{"text": "' + "x" * 2**21 + '"}\n{"text": "b"}\n')
        examples, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip", packing=False))
        assert texts_of(examples) == ["a\0", "b\0"]
        assert notice.data["first"][0]["problem"] == "is longer than 1 MiB"

    def test_rows_of_tables_are_named_by_their_number(self, tmp_path, small_chunks):
        rows = [{"text": f"t{n}" if n != 300 else None} for n in range(400)]
        write_parquet(tmp_path / "data", rows)
        assert f"{tmp_path}/data, row 301 does not have format" in str(
            refusal(TextFiles(source="parquet", path=str(tmp_path / "data")))
        )

    def test_bad_lines_of_several_files_are_counted_in_each(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).write_text('{"text": "a"}\n{\n')
        _, (notice,) = load(TextFiles(path=(str(tmp_path / "a"), str(tmp_path / "b")), on_bad_line="skip"))
        assert [(one["file"], one["line"]) for one in notice.data["first"]] == [
            (str(tmp_path / "a"), 2),
            (str(tmp_path / "b"), 2),
        ]

    def test_format_is_that_of_the_first_good_line_when_bad_ones_are_skipped(self, tmp_path):
        (tmp_path / "data").write_text('{"other": 1}\n{"prompt": "a", "completion": "b"}\n')
        examples, _ = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert texts_of(examples) == ["ab\0"]
        assert "line 1 has none of the known formats" in str(refusal(TextFiles(path=str(tmp_path / "data"))))

    def test_message_does_not_quote_the_line(self, tmp_path):
        (tmp_path / "data").write_text('{"text": "a"}\nsecret\n{"text": 1, "secret": 2}\n')
        _, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert "secret" not in notice.message + json.dumps(notice.data)


class TestArrays:
    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ('[{"text": "a"}, {"text": 7}]', "data.path: {}, item 2 does not have format `text`"),
            ('[{"text": "a"},\n {"text": "b"', "item 2 is the end of the file, and the array has no `]`"),
            ('[{"text": "a"},\n]', "item 2 is missing: the array has a comma without an item"),
            ('[{"text": "a"}\n]\n[{"text": "b"}]', "item 2 comes after the `]` that ends the array"),
            ('[{"text": "a"}]\n[{"text": "b"}]\n', "2 of 2 lines are bad: {}, line 1 has none of the known formats"),
            ('[{"text": "a"} {"text": "b"}]', "item 1 is not JSON: Extra data at character 15"),
            ("[1,2]", "2 of 2 items are bad"),
            ("[1,2]\n", "2 of 2 items are bad"),
            ('[{"text": "a"}, [{"text": "b"}]]', "item 2 does not have format `text`"),
            ('[{"text": "a"},\n{"text": "' + "b" * 3000 + '"}]', "item 2 is longer than 2 KiB"),
            ("[]", "holds no example"),
            (
                '{"data": [{"text": "a"}]}',
                "it holds a list of objects; write each record on one line, or all of them as",
            ),
            ('{\n"data": [\n{"text": "a"}\n]}', "write each record on one line, or all of them as one JSON array"),
            ('{"data": [\n{"text": "a"}\n]}', "write each record on one line, or all of them as one JSON array"),
        ],
    )
    @pytest.mark.parametrize("format", ["auto", "text"])
    def test_what_is_wrong_is_stated(self, tmp_path, monkeypatch, content, problem, format):
        monkeypatch.setattr(records, "MAX_LINE_BYTES", 2**11)
        (tmp_path / "data").write_text(content)
        message = str(refusal(TextFiles(path=str(tmp_path / "data"), format=format)))
        if format == "text":
            problem = problem.replace("has none of the known formats", "does not have format `text`")
        assert problem.format(tmp_path / "data") in message

    def test_bad_items_are_skipped_and_named(self, tmp_path, small_chunks):
        items = [{"text": f"text {n}"} for n in range(300)]
        content = json.dumps(items).replace('"text 250"', "7").removesuffix("]")
        (tmp_path / "data").write_text(content)
        examples, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip", packing=False))
        assert examples.train == 298
        assert [(one["item"], one["problem"][:20]) for one in notice.data["first"]] == [
            (251, "does not have format"),
            (300, "is the end of the fi"),
        ]

    def test_list_in_a_line_is_a_bad_line(self, tmp_path):
        (tmp_path / "data").write_text('[{"role": "user"}]\n{"text": "a"}\n')
        examples, (notice,) = load(TextFiles(path=str(tmp_path / "data"), on_bad_line="skip"))
        assert texts_of(examples) == ["a\0"]
        assert notice.data["first"][0]["line"] == 1


class TestHeldOutFraction:
    def data(self, tmp_path, **options):
        write_jsonl(tmp_path / "data", [{"text": f"t{n}"} for n in range(100)])
        return TextFiles(path=str(tmp_path / "data"), packing=False, **options)

    def test_examples_are_for_training_or_held_out(self, tmp_path):
        examples, _ = load(self.data(tmp_path, eval_fraction=0.25))
        texts = texts_of(examples)
        assert (examples.train, examples.held_out, examples.held_out_sets) == (75, 25, {})
        assert sorted(texts) == sorted(f"t{n}\0" for n in range(100))
        assert texts[75:] != [f"t{n}\0" for n in range(75, 100)]

    def test_choice_depends_on_the_number_of_examples_alone(self, tmp_path):
        first = texts_of(load(self.data(tmp_path, eval_fraction=0.25))[0])[75:]
        (tmp_path / "more").mkdir()
        second = texts_of(load(self.data(tmp_path / "more", eval_fraction=0.25))[0])[75:]
        assert first == second

    def test_a_long_text_is_not_divided_between_them(self, tmp_path):
        write_jsonl(tmp_path / "data", [{"text": chr(97 + n) * 100} for n in range(10)])
        examples, _ = load(TextFiles(path=str(tmp_path / "data"), eval_fraction=0.5), length=16)
        letters = [{letter for tokens in row for letter in tokens if letter} for row in rows_of(examples)]
        train = set().union(*letters[: examples.train])
        assert not train & set().union(*letters[examples.train :])

    @pytest.mark.parametrize(("fraction", "message"), [(0.001, "among those held out"), (0.999, "is not held out")])
    def test_fraction_that_leaves_nothing_is_refused(self, tmp_path, fraction, message):
        assert message in str(refusal(self.data(tmp_path, eval_fraction=fraction)))

    def test_mixture_has_a_set_of_each_source(self, tmp_path):
        for name, count in (("a", 40), ("b", 20)):
            write_jsonl(tmp_path / name, [{"text": f"{name}{n}"} for n in range(count)])
        sources = ({"path": str(tmp_path / "a"), "weight": 3}, {"path": str(tmp_path / "b"), "name": "books"})
        data = TextMixture(sources=sources, eval_fraction=0.1, packing=False)
        examples, (notice,) = load(data)
        assert (examples.train, examples.held_out_sets) == (54, {"source_1": 4, "books": 2})
        assert examples.mixture.sizes == (36, 18)
        assert [text[0] for text in texts_of(examples)] == ["a"] * 36 + ["b"] * 18 + ["a"] * 4 + ["b"] * 2
        assert notice.data == {
            "sources": {
                "source_1": {"rows": 36, "drawn_per_epoch": 41},
                "books": {"rows": 18, "drawn_per_epoch": 13},
            }
        }

    def test_training_digest_ignores_evaluation_files(self, tmp_path):
        plain = load(self.data(tmp_path))[0]
        write_jsonl(tmp_path / "eval", [{"text": "e"}])
        with_file = load(self.data(tmp_path, eval_path=str(tmp_path / "eval")))[0]
        with_fraction = load(self.data(tmp_path, eval_fraction=0.1))[0]
        assert plain.digest == with_file.digest != with_fraction.digest


def test_rank_maps_the_files_of_tokens(tmp_path):
    write_jsonl(tmp_path / "data", ROWS)
    examples, _ = load(TextFiles(path=str(tmp_path / "data")))
    segment = examples.rows.segments(0)[0]
    base = segment.tokens
    while isinstance(base, np.ndarray) and base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not segment.tokens.flags.writeable
    assert os.path.exists(examples.rows.cache.root)
