"""Builds the tokens of a source: parts of its files are encoded by all processors of the node, in order."""

import logging
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.contract.formats.detection import AmbiguousRecordError, check_record, check_unambiguous, detect_format
from trainyard.contract.formats.examples import columns_of
from trainyard.contract.formats.records import BadRecordError, unreadable
from trainyard.contract.spec.text_sources import TextSource
from worker.core.processes import die_with_parent, usable_processors
from worker.data.bad_records import BadRecords, NamedRecord
from worker.data.data_files import Chunk, DataFile
from worker.data.encode import EncodedChunk, encode_chunk
from worker.data.read_limit import SourceLimit
from worker.data.records import RecordPosition, Unreadable, chunks_of, numbered_records
from worker.data.source_account import shown_of, token_facts
from worker.data.tokenizers import Tokenizer
from worker.data.unread_fields import UnreadFields

log = logging.getLogger(__name__)

TOKENS, TARGETS, ENDS = "tokens", "targets", "ends"
"""The files of an entry: int32 and uint8, (tokens,), and the index after each example's last token, int64,
(examples,)."""

_SERIAL_BYTES = 2**24
"""For fewer bytes, processes would take longer to start than to work."""
_MAX_PROCESSES = 64


@dataclass(frozen=True)
class BadLines:
    """How to handle records that hold no example."""

    limit: int
    """The number of records that may be skipped; 0: none."""


def build_tokens(
    folder: Path,
    files: Sequence[DataFile],
    source: TextSource,
    tokenizer: Tokenizer,
    bad_lines: BadLines,
    on_progress: Callable[[], None],
    limit: SourceLimit | None = None,
) -> dict[str, Any]:
    """Write the tokens of the examples of the files, and return facts about them: `format`, `examples`, `tokens`,
    `records` (the number of records read), `bad` (the number of records without an example), `named` (the first bad
    records), and other fields of a `DataAccount`.

    Args:
        limit: The limit for reading; None: read everything.

    Raises:
        RefusedError: A file is invalid, or has more bad records than may be skipped.
    """
    chunks = list(_reported(chain.from_iterable(map(chunks_of, files)), on_progress))
    format, encode = _encoder(files, source, tokenizer, bad_lines, limit)
    tally = _Tally(BadRecords(files[0].field if files else "", bad_lines.limit))
    examples = tokens = 0
    counts, unread = Counter[str](), UnreadFields(columns_of(format, source.columns))
    with ExitStack() as stack:
        outputs = {name: stack.enter_context((folder / name).open("wb")) for name in (TOKENS, TARGETS, ENDS)}
        parts = _encoded(chunks, encode, tally.bad.most, serial=limit is not None)
        # A limit ends before the last part.
        for chunk, encoded in zip(chunks, parts, strict=limit is None):
            on_progress()
            tally.add(chunk, encoded)
            outputs[TOKENS].write(encoded.tokens.data)
            outputs[TARGETS].write(encoded.targets.view(np.uint8).data)
            outputs[ENDS].write((np.cumsum(encoded.lengths) + tokens).astype(np.int64).data)
            examples, tokens = examples + len(encoded.lengths), tokens + len(encoded.tokens)
            counts.update(encoded.counts)
            unread.merge(encoded.unread)
            if limit and limit.is_reached:
                break
    tally.bad.check()
    log.info("%d examples of format %s, %d tokens, %d bad records", examples, format, tokens, tally.bad.count)
    return tally.bad.facts() | {
        "format": format,
        "complete": not (limit and limit.is_reached),
        "examples": examples,
        "tokens": tokens,
        "counts": dict(counts),
        "unread_fields": unread.names(files),
        **_facts(folder, tokenizer),
    }


def _reported(chunks: Iterable[Chunk], on_progress: Callable[[], None]) -> Iterator[Chunk]:
    for chunk in chunks:
        on_progress()
        yield chunk


def _encoder(
    files: Sequence[DataFile], source: TextSource, tokenizer: Tokenizer, bad_lines: BadLines, limit: SourceLimit | None
) -> tuple[str, Callable[..., EncodedChunk]]:
    """Return the format of the records, and an encoder for a part of a file."""
    is_detected = source.format == "auto"
    format: str = _detected(files, source, skips=bad_lines.limit > 0, limit=limit) if is_detected else source.format
    encode = partial(
        encode_chunk,
        format=format,
        columns=dict(source.columns),
        tokenizer=tokenizer,
        is_detected=is_detected,
        limit=limit,
    )
    return format, encode


def _facts(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return facts about the examples of an entry, from its arrays."""
    tokens, targets, ends = (
        np.memmap(folder / name, dtype=dtype, mode="r") if (folder / name).stat().st_size else np.zeros(0, dtype)
        for name, dtype in ((TOKENS, "<i4"), (TARGETS, "<u1"), (ENDS, "<i8"))
    )
    return {**token_facts(targets, ends), "shown": shown_of(tokens, targets, ends, tokenizer)}


class _Tally:
    """Counts the records, and the lines before each part of a file."""

    def __init__(self, bad: BadRecords) -> None:
        self.bad = bad
        self._file: DataFile | None = None
        self._lines = 0

    def add(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Raises RefusedError: there are more bad records than may be skipped."""
        if chunk.file is not self._file:
            self._file, self._lines = chunk.file, 0
        before = self._lines if chunk.file.kind == "jsonl" else 0
        self.bad.read += len(encoded.lengths) + len(encoded.bad)
        for bad in encoded.bad:
            position = RecordPosition(chunk.file, bad.number + before)
            self.bad.add(NamedRecord.at(position, bad.problem, bad.hint))
        self.bad.check_time()
        self._lines += encoded.records


def _detected(files: Sequence[DataFile], source: TextSource, *, skips: bool, limit: SourceLimit | None) -> str:
    """Return the format of the first readable record, or with `skips` of the first record that has a format.

    Without records it returns the name of any format.

    Raises:
        RefusedError: The record has none of the formats, or several.
    """
    columns = columns_of("auto", source.columns)
    has_records = is_ambiguous = False
    records = numbered_records(files, columns)
    for _, record in limit.limit.of_source().take(records) if limit else records:
        if isinstance(record, Unreadable):
            continue
        has_records = True
        try:
            return detect_format(record, source.columns)
        except BadRecordError as error:
            # The records are not bad: the spec leaves their meaning open.
            is_ambiguous = isinstance(error, AmbiguousRecordError)
            if not skips or is_ambiguous:
                break
    if has_records:
        _refuse_undetected(files, source, can_skip=not skips and not is_ambiguous)
    return "text"


def _refuse_undetected(files: Sequence[DataFile], source: TextSource, *, can_skip: bool) -> None:
    """Raise RefusedError with the records that have no format, or a format other than the first."""
    bad = BadRecords(files[0].field, 0)
    format: str | None = None
    for position, record in numbered_records(files, columns_of("auto", source.columns)):
        bad.read += 1
        try:
            if isinstance(record, Unreadable):
                raise unreadable(record, "the fields of a format")
            if format is None:
                format = detect_format(record, source.columns)
            else:
                check_record(record, format, source.columns)
                check_unambiguous(record, format, source.columns)
        except BadRecordError as error:
            bad.add(NamedRecord.at(position, str(error), error.hint))
        bad.check_time()
    bad.check(can_skip=can_skip)


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
        except BaseException:
            # Do not wait for the parts that are being encoded.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
