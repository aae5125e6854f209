"""`logs`: print and follow the log of a rank or the launcher."""

import codecs
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import typer

from trainyard.cli.arguments import JobArgument, JsonOption, SinceOption, find_job, make_client
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.log_search import ALL_RANKS, LineFilter, lines_around, offset_around, print_matches, ranks_of
from trainyard.cli.output import LogPrinter, print_error, print_json, print_text
from trainyard.client import Client, LogChunk, NotFoundError, TrainyardError
from trainyard.client.retry import backoff, is_transient
from trainyard.contract.terminal_text import last_written
from trainyard.contract.wire.jobs import TERMINAL, JobResource


class Level(StrEnum):
    """Which lines `--level` selects."""

    WARNING = "warning"
    ERROR = "error"


POLL_SECONDS = 1.0
GIVE_UP_SECONDS = 3600.0
NOTE_SECONDS = 5.0
"""Seconds between two notes about a job that has no log yet, while its status does not change."""


def logs(
    ctx: typer.Context,
    job_id: JobArgument,
    rank: Annotated[str, typer.Option(help="Rank, `launch` for the launcher, or with --grep `all`.")] = "0",
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt; default: the current one and later ones.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Start with this many lines from the end.")] = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only lines with this text, or matching `/a regular expression/`."),
    ] = None,
    level: Annotated[Level | None, typer.Option(help="Only errors, or warnings and errors.")] = None,
    since: SinceOption = None,
    around: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Only the lines around a step, a time, or the last `error`.")
    ] = None,
    context: Annotated[int, typer.Option("-C", "--context", min=1, max=1000, help="Lines before and after.")] = 20,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the log until the job ends.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job's log.

    Example: trainyard logs last --grep "/loss (nan|inf)/"
    """
    requested = LineFilter(grep, level.value if level else None, since)
    searched = grep is not None or level is not None
    _check_rank(rank, searched=searched)
    _check_options(searched=searched, live=follow or tail is not None, since=since is not None, around=bool(around))
    with make_client(ctx) as client:
        job = find_job(client, job_id)
        if searched:
            print_matches(client, job, ranks_of(job, rank), attempt, requested, as_json=as_json)
            return
        if around is not None:
            number, start = offset_around(client, job, rank, attempt, around)
            for line in lines_around(client, job, rank, number, start, context):
                print_json({"rank": rank, "text": line}) if as_json else print_text(f"{last_written(line)}\n")
            return
        position = LogPosition(attempt or (job.attempt.number if job.attempt else None), rank, tail=tail)
        if since is not None and position.attempt is not None:
            offset = client.log_position(job.id, time=since, rank=rank, attempt=position.attempt).offset
            position = replace(position, offset=offset, tail=None)
        _print(client, job, position, follow=follow, fixed=attempt is not None, as_json=as_json)


def _check_rank(rank: str, *, searched: bool) -> None:
    if rank not in ("launch", ALL_RANKS) and not rank.isdecimal():
        raise UsageError(f"--rank takes a number or `launch`, not {rank!r}")
    if rank == ALL_RANKS and not searched:
        raise UsageError("--rank all needs --grep or --level")


def _check_options(*, searched: bool, live: bool, since: bool, around: bool) -> None:
    if searched and (live or around):
        raise UsageError("--grep and --level search the whole log: give no --follow, --tail or --around with them")
    if around and (live or since):
        raise UsageError("--around prints one part of the log: give no --follow, --tail or --since with it")


def _print(
    client: Client, job: JobResource, position: "LogPosition", *, follow: bool, fixed: bool, as_json: bool
) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    source = Follower(client, job, position, fixed=fixed).chunks() if follow else read(client, job, position)
    with LogPrinter() as printer:
        for start, chunk in source:
            text = decoder.decode(chunk.data)
            if as_json:
                print_json({"attempt": start.attempt, "rank": start.rank, "offset": chunk.offset, "text": text})
            else:
                printer.write(text)


@dataclass(frozen=True)
class LogPosition:
    """The position of the next read in a log: an offset, or at first `tail` lines before the end."""

    attempt: int | None
    rank: str
    offset: int = 0
    tail: int | None = None

    def after(self, chunk: LogChunk) -> "LogPosition":
        return replace(self, offset=chunk.next_offset, tail=None)


PositionedChunk = tuple[LogPosition, LogChunk]


def fetch(client: Client, job: JobResource, position: LogPosition) -> LogChunk:
    offset = position.offset if position.tail is None else None
    return client.logs(job.id, rank=position.rank, attempt=position.attempt, tail=position.tail, offset=offset)


def read(client: Client, job: JobResource, position: LogPosition) -> Iterator[PositionedChunk]:
    """Yield the present content of the log from this position on."""
    while (chunk := fetch(client, job, position)).data:
        yield position, chunk
        position = position.after(chunk)


class Follower:
    """Reads a log until the job has ended, across attempts and restarts of the service."""

    def __init__(self, client: Client, job: JobResource, position: LogPosition, *, fixed: bool) -> None:
        self._client = client
        self._job = job
        self._position = position
        self._fixed = fixed
        self._missing: NotFoundError | None = None
        self._waited = 0.0
        self._failures = 0
        self._noted: tuple[str, str] | None = None
        """The status and its message that were printed last, while there was no log."""
        self._noted_at = 0.0

    def chunks(self) -> Iterator[PositionedChunk]:
        ended = False
        while True:
            try:
                chunk = self._fetch()
                if chunk is not None and chunk.data:
                    yield self._position, chunk
                    self._position = self._position.after(chunk)
                    continue
                if ended and not self._next_attempt():
                    break
                ended = self._has_ended()
                self._reset_failures()
            except TrainyardError as error:
                self._wait_for_service(error)
                continue
            if not ended:
                self._note_missing_log()
                time.sleep(POLL_SECONDS)
        if self._missing is not None:
            raise self._missing

    def _fetch(self) -> LogChunk | None:
        if self._position.attempt is None:
            return None
        try:
            chunk = fetch(self._client, self._job, self._position)
        except NotFoundError as error:
            # The log is created with its first line; only after the job's end is a missing log an error.
            self._missing = error
            return None
        self._missing = None
        return chunk

    def _has_ended(self) -> bool:
        """Return whether the log is complete; the caller then reads its rest."""
        self._job = self._client.job(self._job.id).resource
        current = self._job.attempt.number if self._job.attempt else None
        if self._position.attempt is None:
            self._position = replace(self._position, attempt=current)
            return current is None and self._job.status in TERMINAL
        return self._job.status in TERMINAL or (current is not None and current > self._position.attempt)

    def _next_attempt(self) -> bool:
        current = self._job.attempt.number if self._job.attempt else None
        if self._fixed or current is None or self._position.attempt is None or current <= self._position.attempt:
            return False
        self._position = LogPosition(self._position.attempt + 1, self._position.rank)
        return True

    def _note_missing_log(self) -> None:
        """Print why there is no log yet: at first, if the job's status changes, and at times if its message does."""
        if self._position.attempt is not None and self._missing is None:
            return
        noted, now = (self._job.status, self._job.status_message), time.monotonic()
        is_new = self._noted is None or noted[0] != self._noted[0]
        if is_new or (noted != self._noted and now - self._noted_at >= NOTE_SECONDS):
            print_note(f"waiting for the log; the job is {noted[0]}: {noted[1]}", prefix="")
            self._noted, self._noted_at = noted, now

    def _wait_for_service(self, error: TrainyardError) -> None:
        if not is_transient(error) or self._waited > GIVE_UP_SECONDS:
            raise error
        if not self._failures:
            print_error(f"connection lost, waiting for the service: {error.message}")
        self._failures += 1
        delay = backoff(self._failures)
        self._waited += delay
        time.sleep(delay)

    def _reset_failures(self) -> None:
        self._failures, self._waited = 0, 0.0
