"""What `data.eval_fraction` holds out of records that one task alone reads, and of preferences."""

import json

import numpy as np
import pytest

from trainyard.contract.spec.text_sources import FileSource
from worker.core.errors import RefusedError
from worker.data.parsed_records import divided
from worker.data.preference_rows import load_answers
from worker.data.row_layout import held_out_examples
from worker.data.tokenizers import ByteTokenizer


class TestDivision:
    def test_records_are_chosen_by_their_number_as_those_of_other_texts(self):
        training, held_out = divided("data.path", list(range(20)), 0.25)
        assert held_out == np.flatnonzero(held_out_examples(20, 0.25)).tolist()
        assert sorted(training + held_out) == list(range(20))
        assert training == sorted(training)

    def test_nothing_is_held_out_without_a_fraction(self):
        assert divided("data.path", [1, 2], 0.0, least=2) == ([1, 2], [])

    @pytest.mark.parametrize(
        ("records", "fraction", "least", "message", "hint"),
        [
            (3, 0.9, 1, r"holds every example of data\.sources\.0\.path out", "smaller"),
            (3, 0.1, 1, r"holds out 0 of 3 examples of data\.sources\.0\.path, and an evaluation needs 1", "larger"),
            (10, 0.1, 2, r"holds out 1 of 10 examples", "larger"),
        ],
    )
    def test_side_without_enough_records_is_refused(self, records, fraction, least, message, hint):
        with pytest.raises(RefusedError, match=message) as raised:
            divided("data.sources.0.path", list(range(records)), fraction, least)
        assert str(raised.value).startswith("data.eval_fraction: ")
        assert hint in raised.value.hint


class TestPreferences:
    def load(self, tmp_path, count, **options):
        records = [{"prompt": f"p{n}", "completion": f"answer {n}", "label": n % 2 == 0} for n in range(count)]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
        source = FileSource(path=str(tmp_path / "a.jsonl"))
        loaded = load_answers("data.path", source, ["unpaired_preference"], ByteTokenizer(), 64, **options)
        return loaded.train, loaded.held_out

    def test_answers_for_training_are_compared_with_no_held_out_one(self, tmp_path):
        train, held_out = self.load(tmp_path, 12, fraction=0.25)
        assert (len(train), len(held_out)) == (9, 3)
        chosen = held_out_examples(12, 0.25)
        for rows, numbers in ((train, np.flatnonzero(~chosen)), (held_out, np.flatnonzero(chosen))):
            starts = [0, *rows.rows.ends[:-1]]
            texts = [bytes(rows.rows.tokens[a:b].tolist()) for a, b in zip(starts, rows.rows.ends, strict=True)]
            answers = {text.rpartition(b"answer ")[2].rstrip(b"\0") for text in texts}
            assert answers == {str(number).encode() for number in numbers}

    def test_fraction_that_holds_nothing_out_is_refused(self, tmp_path):
        with pytest.raises(RefusedError, match="holds out 0 of 3 examples"):
            self.load(tmp_path, 3, fraction=0.1)
        assert [len(part) for part in self.load(tmp_path, 3)] == [3, 0]
