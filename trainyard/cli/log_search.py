"""Parts of a log for `logs`: the lines that match, and the lines around a step, a time or the last error."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import typer

from trainyard.cli.arguments import parse_date
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.output import one_line, print_json, print_text
from trainyard.client import Client, NotFoundError
from trainyard.contract.terminal_text import last_written
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.logs import LogLevel

ALL_RANKS = "all"
_BYTES_AFTER = 256 * 1024
_STEP = re.compile(r"(?:step\s*)?(\d{1,15})")


@dataclass(frozen=True)
class LineFilter:
    """Which lines to print: `text` is a part of them or `/a regular expression/`."""

    text: str | None
    level: LogLevel | None
    since: datetime | None = None

    @property
    def expression(self) -> str | None:
        """The regular expression between slashes; None for plain text."""
        text = self.text or ""
        return text[1:-1] if len(text) > 2 and text[0] == text[-1] == "/" else None


def ranks_of(job: JobResource, rank: str) -> Sequence[str]:
    """Return the logs that `--rank` names: a single log, or the logs of all ranks and of the launcher."""
    if rank != ALL_RANKS:
        return [rank]
    return [*(str(number) for number in range(job.spec.get("gpus", 1))), "launch"]


def print_matches(
    client: Client, job: JobResource, ranks: Sequence[str], attempt: int | None, requested: LineFilter, *, as_json: bool
) -> None:
    """Print the matching lines.

    Raises:
        typer.Exit: No line matches; the exit code is 1.
    """
    count = 0
    for rank in ranks:
        expression = requested.expression
        offset = None
        if requested.since is not None:
            offset = client.log_position(job.id, time=requested.since, rank=rank, attempt=attempt).offset
        for line in client.search_logs(
            job.id,
            requested.text if expression is None else expression,
            regex=expression is not None,
            level=requested.level,
            rank=rank,
            attempt=attempt,
            offset=offset,
        ):
            count += 1
            if as_json:
                print_json({"rank": rank, "offset": line.offset, "level": line.level, "text": line.text})
            else:
                print_text(f"{f'[{rank}] ' if len(ranks) > 1 else ''}{one_line(last_written(line.text))}\n")
    if not count:
        print_note("no line matches")
        raise typer.Exit(1)


def offset_around(
    client: Client, job: JobResource, rank: str, attempt: int | None, spot: str
) -> tuple[int | None, int]:
    """Return the attempt and the offset of a spot in a log: a step, a time, or `error` for the last error.

    Raises:
        UsageError: The spot has another form, or the log has no error.
    """
    text = spot.strip().lower()
    if text == "error":
        matches = client.search_logs(job.id, level="error", rank=rank, attempt=attempt, newest_first=True)
        first = next(iter(matches), None)
        if first is None:
            raise UsageError(f"the log of rank {rank} has no line that reports an error")
        return attempt, first.offset
    if step := _STEP.fullmatch(text):
        position = client.log_position(job.id, step=int(step[1]), rank=rank, attempt=attempt)
    else:
        try:
            time = parse_date(spot)
        except typer.BadParameter:
            raise UsageError(f"--around takes a step, a time or `error`, not {spot!r}") from None
        position = client.log_position(job.id, time=time, rank=rank, attempt=attempt)
    return position.attempt, position.offset


def lines_around(
    client: Client, job: JobResource, rank: str, attempt: int | None, offset: int, count: int
) -> Iterator[str]:
    """Yield `count` lines before an offset, and `count` lines from it on."""
    before = client.logs(job.id, rank=rank, attempt=attempt, tail=count, before=offset)
    yield from before.text.splitlines()
    try:
        after = client.logs(job.id, rank=rank, attempt=attempt, offset=offset)
    except NotFoundError:
        return
    yield from after.data[:_BYTES_AFTER].decode(errors="replace").splitlines()[:count]
