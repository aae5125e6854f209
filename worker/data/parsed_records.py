"""Records of a format that one task alone reads: read, checked, and their texts tokenised."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from trainyard.contract.formats.detection import ALL_EXPECTED
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_data import TextData
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from worker.core.errors import RefusedError
from worker.data.build_tokens import NAMED, NamedRecord, skipped_text, too_many_bad
from worker.data.data_files import find_files
from worker.data.notices import Notice
from worker.data.records import Unreadable, numbered_records
from worker.data.text_examples import DataAccess

Record = TypeVar("Record")
_AT_ONCE = 1000
"""Texts that are tokenised together, after which progress is marked."""


class RecordReader(Generic[Record]):
    """Reads the sources of a section."""

    def __init__(
        self, data: TextData, format: str, parse: Callable[[Any, Mapping[str, str]], Record], access: DataAccess
    ) -> None:
        """`parse`: returns what a record with these names of columns holds, or raises BadRecordError."""
        self._data = data
        self._format = format
        self._parse = parse
        self._access = access
        self.notices: list[Notice] = []
        """What a user should know about the data."""

    def training(self) -> list[Record]:
        """Return the records of the only source for training. Errors are those of `read`."""
        ((section, source),) = self._data.training_sources.items()
        return self.read(section, source)

    def evaluation(self) -> dict[str, list[Record]]:
        """Return the records of each evaluation set; the name of a single one is empty. Errors are those of `read`."""
        return {
            field.removeprefix("data.eval_sets.") if field.startswith("data.eval_sets.") else "": self.read(field, one)
            for field, one in self._data.evaluation_sources.items()
        }

    def read(self, section: str, source: TextSource) -> list[Record]:
        """Return the records of a source.

        Raises:
            RefusedError: A file is invalid, or more records than may be skipped are, or there is none.
        """
        assert isinstance(source, FileSource), "uploaded files have been located"
        limit = self._data.max_bad_lines if self._data.on_bad_line == "skip" else 0
        columns: Mapping[str, str] = source.columns
        fields = frozenset(columns.get(field, field) for field in FORMAT_FIELDS[self._format])
        records: list[Record] = []
        bad: list[NamedRecord] = []
        for position, record in numbered_records(find_files(section, source, self._access.roots), fields):
            try:
                if isinstance(record, Unreadable):
                    raise unreadable(record, ALL_EXPECTED[self._format])
                records.append(self._parse(record, columns))
            except BadRecordError as error:
                bad.append(NamedRecord.at(position, str(error), error.hint))
                if len(bad) > limit:
                    raise too_many_bad(section, bad[:NAMED], limit) from None
            if len(records) % _AT_ONCE == 0:
                self._access.on_progress()
        if not records:
            raise RefusedError(f"{section}: the files hold no example")
        if bad:
            message = skipped_text(section, len(bad), bad[:NAMED])
            self.notices.append(Notice("bad_lines_skipped", message, "warning", {"skipped": len(bad)}))
        return records

    def tokenise(self, texts: Sequence[str], tokenizer: Any, length: int) -> list[list[int]]:
        """Return the tokens of each text with the tokenizer's special ones, at most `length` of each text."""
        rows: list[list[int]] = []
        waiting = iter(texts)
        cut = 0
        while some := list(islice(waiting, _AT_ONCE)):
            self._access.on_progress()
            whole = tokenizer(some)["input_ids"]
            cut += sum(len(one) > length for one in whole)
            rows += tokenizer(some, truncation=True, max_length=length)["input_ids"]
        if cut:
            (section,) = self._data.training_sources
            message = f"{section}: {cut} texts are longer than {length} tokens and were truncated"
            self.notices.append(Notice("data_truncated", message, "warning", {"examples": cut, "max_length": length}))
        # A model computes at least one token of an empty text.
        padding = [0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id]
        return [one or padding for one in rows]


def padding_of(tokenizer: Any) -> int:
    """Return the token that fills shorter texts of a batch up."""
    return next(int(token) for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None)
