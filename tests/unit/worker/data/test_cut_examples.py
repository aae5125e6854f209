"""Examples that are longer than a row are counted: those of which the beginning is used, and those left out."""

import json

import pytest

from trainyard.contract.spec.text_data import TextFiles
from trainyard.contract.spec.text_sources import FileSource
from worker.core.errors import RefusedError
from worker.data.preference_rows import load_answers
from worker.data.text_examples import load_examples
from worker.data.tokenizers import ByteTokenizer

SHORT = {"prompt": "a", "completion": "b"}
TRUNCATED = {"prompt": "a", "completion": "b" * 30}
LEFT_OUT = {"prompt": "a" * 40, "completion": "b"}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.fixture
def write(tmp_path):
    def write_file(*lines):
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(tmp_path / "data.jsonl")

    return write_file


def load(path, **options):
    return load_examples(TextFiles(path=path, **options), ByteTokenizer(), 16)


@pytest.mark.parametrize("packing", [True, False])
def test_event_has_both_counts_and_the_longest(write, packing):
    examples, (notice,) = load(write(SHORT, TRUNCATED, TRUNCATED, LEFT_OUT), packing=packing)
    assert sum(len(examples.rows.segments(row)) for row in range(len(examples.rows))) == 3
    assert notice.message == (
        "data.path: of 4 examples, 3 are longer than 16 tokens (the longest has 42): 2 were truncated, and 1 was left "
        "out, with nothing to learn in the first 16"
    )
    counts = {"examples": 3, "truncated": 2, "left_out": 1, "max_length": 16, "longest": 42}
    assert (notice.kind, notice.data) == ("data_truncated", counts)


def test_one_example_that_is_left_out_is_not_called_truncated(write):
    _, (notice,) = load(write(SHORT, LEFT_OUT))
    assert "truncated" not in notice.message
    assert notice.data["left_out"] == 1


def test_texts_continue_in_another_row_and_empty_ones_are_counted(write):
    _, (notice,) = load(write({"text": "a" * 50}, {"text": ""}), packing=False)
    assert notice.message == "data.path: of 2 examples, 1 was left out: they have nothing to learn"
    assert notice.data == {"left_out": 1}


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([LEFT_OUT] * 3, "all 3 examples are longer than 16 tokens"),
        ([LEFT_OUT], "its only example is longer than 16 tokens"),
    ],
)
def test_file_without_any_example_left_is_refused_with_counts_and_remedy(write, lines, counted):
    path = write(*lines)
    with pytest.raises(RefusedError) as error:
        load(path)
    rest = "with nothing to learn in the first 16; the longest has 42 tokens"
    assert str(error.value) == f"data.path: {path} holds nothing to learn: {counted}, {rest}"
    assert "data.max_length" in error.value.hint


def test_part_of_a_split_is_counted_alone(write):
    options = {"eval_fraction": 0.5, "packing": False}
    with pytest.raises(RefusedError, match="nothing to learn that is not held out: all 2 examples are"):
        load(write(*[LEFT_OUT] * 4), **options)


class TestPreferences:
    def load(self, path):
        return load_answers("data.path", FileSource(path=path), ["preference"], ByteTokenizer(), 16)

    def test_event_has_both_counts(self, write):
        loaded = self.load(write(PAIR, PAIR | {"chosen": "b" * 30}, PAIR | {"prompt": "a" * 40}))
        assert (len(loaded.train), len(loaded.held_out)) == (2, 0)
        (notice,) = loaded.notices
        assert notice.data == {"examples": 2, "truncated": 1, "left_out": 1, "max_length": 16, "longest": 42}

    def test_pairs_of_equal_answers_are_left_out_and_counted(self, write):
        equal, equal_when_cut = (
            PAIR | {"rejected": "b"},
            {"prompt": "a", "chosen": "b" * 20, "rejected": "b" * 16 + "c"},
        )
        loaded = self.load(write(PAIR, equal, equal_when_cut, equal))
        assert len(loaded.train) == 1
        (notice,) = loaded.notices
        assert (notice.kind, notice.level) == ("data_without_preference", "warning")
        assert notice.data == {"left_out": 3, "equal": 2, "equal_when_cut": 1, "max_length": 16}
        assert notice.message == (
            "data.path: of 4 pairs, 3 were left out, since nothing can be learned from a chosen and a rejected answer "
            "that are equal: 2 as a whole and 1 in the first 16 tokens"
        )

    @pytest.mark.parametrize(
        ("more", "problem", "hint"),
        [
            (
                {"rejected": "b"},
                "are equal in 3 of 3 pairs (3 as a whole)",
                "Give",
            ),
            (
                {"chosen": "b" * 20, "rejected": "b" * 16},
                "are equal in 3 of 3 pairs (3 in the first 16 tokens)",
                "data.max_length",
            ),
        ],
    )
    def test_file_of_equal_pairs_alone_is_refused(self, write, more, problem, hint):
        with pytest.raises(RefusedError) as error:
            self.load(write(*[PAIR | more] * 3))
        assert str(error.value).endswith(f"holds no pair to learn from: the chosen and the rejected answer {problem}")
        assert hint in error.value.hint

    def test_part_without_a_different_pair_is_refused(self, write):
        source = FileSource(path=write(*[PAIR | {"rejected": "b"}] * 4))
        with pytest.raises(RefusedError, match=r"no pair to learn from that is not held out: .* in 2 of 2 pairs"):
            load_answers("data.path", source, ["preference"], ByteTokenizer(), 16, fraction=0.5)

    def test_file_without_any_pair_left_is_refused(self, write):
        with pytest.raises(RefusedError, match="all 2 examples are longer than 16 tokens"):
            self.load(write(*[PAIR | {"prompt": "a" * 40}] * 2))
