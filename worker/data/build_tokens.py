"""Builds the tokens of a source: parts of its files are encoded by all processors of the node, in order."""

import logging
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.contract.formats.detection import detect_format
from trainyard.contract.formats.examples import columns_of
from trainyard.contract.formats.records import BadRecordError
from trainyard.contract.spec.text_sources import TextSource
from worker.core.errors import RefusedError
from worker.core.processes import die_with_parent, usable_processors
from worker.data.data_files import Chunk, DataFile
from worker.data.encode import BadRecord, EncodedChunk, encode_chunk
from worker.data.read_limit import SourceLimit
from worker.data.records import RecordPosition, Unreadable, chunks_of, numbered_records
from worker.data.source_account import BadRecordReasons, shown_of, token_facts
from worker.data.tokenizers import Tokenizer

log = logging.getLogger(__name__)

TOKENS, TARGETS, ENDS = "tokens", "targets", "ends"
"""The files of an entry: int32 and uint8, (tokens,), and the index after each example's last token, int64,
(examples,)."""

NAMED = 10
"""Bad lines whose position is stated."""
SKIP_HINT = "To leave bad lines out, set data.on_bad_line: skip."
_SERIAL_BYTES = 2**24
"""Of fewer bytes, processes would start for longer than they work."""
_MAX_PROCESSES = 64


@dataclass(frozen=True)
class BadLines:
    """What to do about records that hold no example."""

    limit: int
    """How many may be skipped; 0: none."""


@dataclass(frozen=True)
class NamedRecord:
    """A bad record, and the file and line or row where it is."""

    file: str
    unit: str
    number: int
    problem: str
    hint: str | None = None

    @classmethod
    def at(cls, position: RecordPosition, problem: str, hint: str | None) -> "NamedRecord":
        return cls(position.file.path, position.unit, position.number, problem, hint)

    @property
    def text(self) -> str:
        """The position and the problem."""
        space = "" if self.problem.startswith(":") else " "
        return f"{self.file}, {self.unit} {self.number}{space}{self.problem}"


def build_tokens(
    folder: Path,
    files: Sequence[DataFile],
    source: TextSource,
    tokenizer: Tokenizer,
    bad_lines: BadLines,
    on_progress: Callable[[], None],
    limit: SourceLimit | None = None,
) -> dict[str, Any]:
    """Write the tokens of the examples of the files, and return facts about them: `format`, `examples`, `tokens`, `bad`
    (the number of bad records), `named` (the first of them), and other fields of a `DataAccount`.

    Args:
        limit: Of what is read; None: everything.

    Raises:
        RefusedError: A file is invalid, or has more bad records than may be skipped.
    """
    chunks = [chunk for file in files for chunk in chunks_of(file)]
    format: str = source.format
    if format == "auto":
        format = _detected(files, source, skips=bad_lines.limit > 0, limit=limit)
    encode = partial(encode_chunk, format=format, columns=dict(source.columns), tokenizer=tokenizer, limit=limit)
    tally = _Tally(bad_lines.limit)
    examples = tokens = 0
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        outputs = {name: stack.enter_context((folder / name).open("wb")) for name in (TOKENS, TARGETS, ENDS)}
        parts = _encoded(chunks, encode, bad_lines.limit, serial=limit is not None)
        for chunk, encoded in zip(chunks, parts, strict=True):
            on_progress()
            tally.add(chunk, encoded)
            outputs[TOKENS].write(encoded.tokens.data)
            outputs[TARGETS].write(encoded.targets.view(np.uint8).data)
            outputs[ENDS].write((np.cumsum(encoded.lengths) + tokens).astype(np.int64).data)
            examples, tokens = examples + len(encoded.lengths), tokens + len(encoded.tokens)
            counts.update(encoded.counts)
            if limit and limit.is_reached:
                break
    log.info("%d examples of format %s, %d tokens, %d bad records", examples, format, tokens, tally.count)
    stated = {"named": [asdict(record) for record in tally.named], "reasons": tally.reasons.facts()}
    return stated | {
        "format": format,
        "complete": not (limit and limit.is_reached),
        "examples": examples,
        "tokens": tokens,
        "bad": tally.count,
        "counts": dict(counts),
        **_facts(folder, tokenizer),
    }


def _facts(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the arrays of an entry tell about its examples."""
    tokens, targets, ends = (
        np.memmap(folder / name, dtype=dtype, mode="r") if (folder / name).stat().st_size else np.zeros(0, dtype)
        for name, dtype in ((TOKENS, "<i4"), (TARGETS, "<u1"), (ENDS, "<i8"))
    )
    return {**token_facts(targets, ends), "shown": shown_of(tokens, targets, ends, tokenizer)}


class _Tally:
    """Counts the bad records, and the lines before each part of a file."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file: DataFile | None = None
        self._lines = 0
        self.count = 0
        self.named: list[NamedRecord] = []
        self.reasons = BadRecordReasons()

    def add(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Raises RefusedError: there are more bad records than may be skipped."""
        if chunk.file is not self._file:
            self._file, self._lines = chunk.file, 0
        for bad in encoded.bad:
            record = self._named(chunk.file, bad)
            self.count += 1
            self.reasons.add(bad.problem, f"{record.file}, {record.unit} {record.number}")
            if len(self.named) < NAMED:
                self.named.append(record)
            if self.count > self._limit:
                raise too_many_bad(chunk.file.field, self.named, self._limit)
        self._lines += encoded.records

    def _named(self, file: DataFile, bad: BadRecord) -> NamedRecord:
        before = self._lines if file.kind == "jsonl" else 0
        return NamedRecord.at(RecordPosition(file, bad.number + before), bad.problem, bad.hint)


def too_many_bad(field: str, named: Sequence[NamedRecord], limit: int, *, can_skip: bool = True) -> RefusedError:
    """Return the error about bad records, of which at least one is named.

    Args:
        can_skip: Whether the others would be read if the bad ones were skipped.
    """
    first = named[0]
    if not limit:
        hint = first.hint or "Correct that line, or set data.format."
        return RefusedError(f"{field}: {first.text}", f"{hint} {SKIP_HINT}" if can_skip else hint)
    listed = "; ".join(record.text for record in named)
    more = f"more than {bad_lines_text(limit)} (data.max_bad_lines)"
    return RefusedError(f"{field}: {more}, the first of which are: {listed}", first.hint)


def bad_lines_text(count: int) -> str:
    """Return a number of bad lines, for messages."""
    return f"{count} bad line{'' if count == 1 else 's'}"


def skipped_text(field: str, count: int, named: Sequence[NamedRecord]) -> str:
    """Return the notice about bad records that were skipped, the first of which are named."""
    listed = "; ".join(record.text for record in named)
    more = f", and {count - len(named)} more" if count > len(named) else ""
    return f"{field}: {bad_lines_text(count)} {'was' if count == 1 else 'were'} skipped: {listed}{more}"


def _detected(files: Sequence[DataFile], source: TextSource, *, skips: bool, limit: SourceLimit | None) -> str:
    """Return the format of the first record that is readable, or with `skips` of the first that has one; the name of
    any if there is no record.

    Raises:
        RefusedError: The record has none of the formats.
    """
    columns = columns_of("auto", source.columns)
    first: tuple[RecordPosition, BadRecordError] | None = None
    records = numbered_records(files, columns)
    for position, record in limit.limit.of_source().take(records) if limit else records:
        if isinstance(record, Unreadable):
            continue
        try:
            return detect_format(record, source.columns)
        except BadRecordError as error:
            first = first or (position, error)
            if not skips:
                break
    if first is None:
        return "text"
    position, problem = first
    raise too_many_bad(
        position.file.field, [NamedRecord.at(position, str(problem), problem.hint)], 0, can_skip=not skips
    )


def _encoded(
    chunks: Sequence[Chunk], encode: Callable[..., EncodedChunk], limit: int, *, serial: bool
) -> Iterator[EncodedChunk]:
    """Yield the encoded parts in their order. At most a few for each processor are in memory."""
    size = sum(chunk.file.state.size for chunk in {chunk.file.path: chunk for chunk in chunks}.values())
    processes = min(usable_processors(), len(chunks), _MAX_PROCESSES)
    if serial or processes < 2 or size < _SERIAL_BYTES:
        yield from (encode(chunk, max_bad=limit) for chunk in chunks)
        return
    # Not forked: the threads of this process may hold locks, and its GPU cannot be used in a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start_process, initargs=(encode, os.getpid())
    ) as pool:
        waiting: deque[Future[EncodedChunk]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_encode_in_process, chunk, limit))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise MemoryError("a process that encodes data was killed; it may have been out of memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_encode: Callable[..., EncodedChunk] | None = None


def _start_process(encode: Callable[..., EncodedChunk], parent: int) -> None:
    global _encode
    die_with_parent(parent)
    # The processes share the processors, each with one thread.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encode = encode


def _encode_in_process(chunk: Chunk, limit: int) -> EncodedChunk:
    assert _encode is not None, "the process was initialised"
    return _encode(chunk, max_bad=limit)
