"""Reads, checks and tokenises records of a format that only one task uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from trainyard.contract.formats.detection import ALL_EXPECTED
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_data import TextData, TextMixture, evaluation_set
from trainyard.contract.spec.text_sources import FORMAT_FIELDS, FileSource, TextSource
from worker.core.errors import RefusedError
from worker.data.arrow_tables import class_names
from worker.data.bad_records import BadRecords, NamedRecord
from worker.data.data_files import find_files
from worker.data.notices import Notice
from worker.data.records import Unreadable, numbered_records
from worker.data.row_layout import held_out_examples
from worker.data.shown_examples import shown_numbers, shown_text
from worker.data.source_account import account_of
from worker.data.text_examples import DataAccess
from worker.data.token_rows import Segment
from worker.data.unread_fields import UnreadFields

Record = TypeVar("Record")
_AT_ONCE = 1000
"""Texts that are tokenised together, after which progress is marked."""


@dataclass(frozen=True)
class RecordPart(Generic[Record]):
    """The records of a training source or of an evaluation set."""

    field: str
    """The field of the spec that names the files."""
    records: list[Record]
    name: str | None = None
    """Evaluation set name (`""` if unnamed); None for training records."""


def divided(
    field: str, records: Sequence[Record], fraction: float, least: int = 1
) -> tuple[list[Record], list[Record]]:
    """Return the training records and the records that `data.eval_fraction` holds out, by their number alone.

    Args:
        field: The field of the spec that names the files, for messages.
        least: The fewest held-out records that allow an evaluation.

    Raises:
        RefusedError: There are too few training or held-out records.
    """
    if not fraction:
        return list(records), []
    chosen = held_out_examples(len(records), fraction)
    training = [one for one, held in zip(records, chosen, strict=True) if not held]
    held_out = [one for one, held in zip(records, chosen, strict=True) if held]
    if not training:
        raise RefusedError(f"data.eval_fraction: holds every example of {field} out", "Use a smaller fraction.")
    if len(held_out) < least:
        counted = f"{len(held_out)} of {len(records)} examples of {field}"
        raise RefusedError(
            f"data.eval_fraction: holds out {counted}, and an evaluation needs {least}", "Use a larger fraction."
        )
    return training, held_out


class RecordReader(Generic[Record]):
    """Reads the sources of a section."""

    def __init__(
        self, data: TextData, format: str, parse: Callable[[Any, Mapping[str, str]], Record], access: DataAccess
    ) -> None:
        """`parse`: parses a record, given the names of its columns, or raises BadRecordError."""
        self._data = data
        self._format = format
        self._parse = parse
        self._access = access
        self.notices: list[Notice] = []
        """Notices for the user about the data."""
        self._facts: dict[str, dict[str, Any]] = {}
        """Fields of the account of each source, by its section."""

    def parts(self, *, least: int = 1) -> list[RecordPart[Record]]:
        """Return the records of each training source, followed by the records of each evaluation set.

        Raises the errors of `read` and of `divided`, which explains `least`.
        """
        data = self._data
        training: list[RecordPart[Record]] = []
        held_out: list[RecordPart[Record]] = []
        names = data.names if isinstance(data, TextMixture) else ("",)
        for name, (field, source) in zip(names, data.training_sources.items(), strict=True):
            own, held = divided(field, self.read(field, source), data.eval_fraction, least)
            training.append(RecordPart(field, own))
            if data.eval_fraction:
                held_out.append(RecordPart(field, held, name))
        for field, source in data.evaluation_sources.items():
            held_out.append(RecordPart(field, self.read(field, source), evaluation_set(field)))
        return training + held_out

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
        bad, unread = BadRecords(section, limit), UnreadFields(fields)
        files = find_files(section, source, self._access.roots)
        label = columns.get("label", "label")
        names = {file.path: class_names(file, label) for file in files if label in fields}
        allowed = self._access.limit.of_source() if self._access.limit else None
        numbered = numbered_records(files, fields)
        for position, record in allowed.take(numbered) if allowed else numbered:
            bad.read += 1
            try:
                if isinstance(record, Unreadable):
                    raise unreadable(record, ALL_EXPECTED[self._format])
                records.append(self._parse(_named(record, label, names.get(position.file.path, ())), columns))
                unread.add(record)
            except BadRecordError as error:
                bad.add(NamedRecord.at(position, str(error), error.hint))
            if bad.read % _AT_ONCE == 0:
                self._access.on_progress()
                bad.check_time()
        bad.check()
        self._facts[section] = bad.facts() | {
            "format": self._format,
            "complete": not (allowed and allowed.is_reached),
            "examples": len(records),
            "unread_fields": unread.names(files),
        }
        if not records:
            raise RefusedError(f"{section}: the files hold no example")
        self.notices += bad.notices()
        return records

    def tokenise(self, texts: Sequence[str], tokenizer: Any, length: int) -> list[list[int]]:
        """Return the tokens of each text with the tokenizer's special tokens, at most `length` for each text."""
        rows: list[list[int]] = []
        waiting = iter(texts)
        cut = 0
        while some := list(islice(waiting, _AT_ONCE)):
            self._access.on_progress()
            whole = tokenizer(some)["input_ids"]
            cut += sum(len(one) > length for one in whole)
            rows += tokenizer(some, truncation=True, max_length=length)["input_ids"]
        if cut:
            fields = self._data.training_sources
            section = next(iter(fields)) if len(fields) == 1 else "data.sources"
            message = f"{section}: {cut} texts are longer than {length} tokens and were truncated"
            self.notices.append(Notice("data_truncated", message, "warning", {"examples": cut, "max_length": length}))
        # A model computes at least one token of an empty text.
        padding = [0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id]
        return [one or padding for one in rows]

    def report_accounts(
        self,
        parts: Sequence[RecordPart[Record]],
        texts_of: Callable[[Record], Mapping[str, str]],
        tokenizer: Any,
        length: int,
        label_of: Callable[[Record], str | None] = lambda record: None,
    ) -> None:
        """Report the account of each source.

        Args:
            texts_of: Returns the texts of a record by their names; see `ExampleText.name`.
            label_of: Returns the label of a record.
        """
        for section, facts in self._facts.items():
            own = [part for part in parts if part.field == section]
            records = [record for part in own for record in part.records]
            shown = [
                {
                    "number": number + 1,
                    "texts": [
                        _shown_text(tokenizer, length, name, text, label_of(records[number]))
                        for name, text in texts_of(records[number]).items()
                    ],
                }
                for number in shown_numbers(len(records))
            ]
            held_out = sum(len(part.records) for part in own[1:])
            rows = len(records) - held_out
            facts |= {"shown": shown}
            self._access.on_account(account_of(section, facts, None, length, rows=rows, held_out_rows=held_out))


def _shown_text(tokenizer: Any, length: int, name: str, text: str, label: str | None) -> dict[str, Any]:
    tokens = np.array(tokenizer(text, truncation=True, max_length=length)["input_ids"], dtype=np.int32)
    segment = Segment(tokens, np.zeros(len(tokens), dtype=np.bool_))
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    return shown_text(segment, decode, name, label).model_dump(mode="json")


def _named(record: Any, label: str, names: Sequence[str]) -> Any:
    """Return a record with the name of its class instead of the number. A number of no class, as `datasets` writes for
    an absent label, becomes null."""
    if not names or not isinstance(record, dict) or not isinstance(number := record.get(label), int):
        return record
    return record | {label: names[number] if 0 <= number < len(names) else None}


def padding_of(tokenizer: Any) -> int:
    """Return the token that fills shorter texts of a batch up."""
    return next(int(token) for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None)
