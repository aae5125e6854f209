"""`sweep`, `sweeps` and `sweep-cancel`: one spec in several variants."""

import itertools
import re
import time
from typing import Annotated, Any

import typer
from rich.text import Text

from trainyard.cli.completing import complete_sweep
from trainyard.cli.failures import CANCELLED, FAILED, INTERRUPTED, UsageError
from trainyard.cli.output import age, complain, emit, emit_all, number, say, status_text, table
from trainyard.cli.session import LOOKED_AT, ForceOption, JsonOption, KeyOption, SpecArgument, abbreviates, client_of
from trainyard.cli.specs import CodeOption, find_code, read_spec, read_value
from trainyard.client import Client, ConflictError, NotFoundError
from trainyard.contract.spec.training_spec import excluded_by
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import SweepDetail

_WHICH = "Id, unique start or end of one (4 characters), a name (its newest sweep), or `last`."
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=complete_sweep, help=_WHICH)]

_LOOK_SECONDS = 2.0

_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*["]""")
_EMPTY = re.compile(r"(?:^|,)\s*(?:,|$)")
"""A value of which nothing is written, before, between or after commas."""


def sweep(
    ctx: typer.Context,
    source: SpecArgument,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUE,...", help="A field and its values, with commas; can be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set one field in all of them.")
    ] = None,
    max_parallel: Annotated[int | None, typer.Option(min=1, help="How many may run at once; default: all.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep, for people.")] = None,
    code: CodeOption = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Follow it until all of its jobs are over.")] = False,
    idempotency_key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a spec in several variants, a job for every combination of the values.

    Example: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3 --grid seed=0,1 --max-parallel 2 --watch
    """
    if not grid:
        raise UsageError("a sweep needs at least one --grid PATH=VALUE,VALUE, like --grid optimizer.lr=1e-4,3e-4")
    axes = parse_grid(grid)
    with client_of(ctx) as client:
        document = read_spec(client, source, settings or [])
        document |= excluded_by(axes)
        if folder := code or find_code(document, source):
            document["code"] = client.upload(folder)
        made = client.submit_sweep(
            document, grid=axes, max_parallel=max_parallel, name=name, idempotency_key=idempotency_key, force=force
        )
        if as_json:
            emit(made)
        else:
            say(f"sweep {made.id} ({made.name}) accepted: {made.size} job{'' if made.size == 1 else 's'}")
        if follow:
            raise typer.Exit(_follow(client, made, as_json=as_json))
    if not as_json:
        say(f"see it with: trainyard sweeps {made.id}; compare its jobs with: trainyard compare --sweep {made.id}")


def sweeps(
    ctx: typer.Context,
    sweep_id: Annotated[
        str | None,
        typer.Argument(metavar="SWEEP", autocompletion=complete_sweep, help=f"One of them, with its jobs. {_WHICH}"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List sweeps, or show one with its jobs.

    Example: trainyard sweeps last
    """
    with client_of(ctx) as client:
        if sweep_id is not None:
            found = find_sweep(client, sweep_id)
            if as_json:
                emit(found)
            else:
                show(found)
            return
        listed = list(itertools.islice(client.sweeps(), limit))
    if as_json:
        emit_all(listed)
    elif not listed:
        complain("no sweeps yet; try: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3")
    else:
        rows = [(s.id, s.name, _tally(s.counts), ", ".join(s.fields), age(s.created_at), s.created_by) for s in listed]
        table(("SWEEP", "NAME", "JOBS", "FIELDS", "CREATED", "BY"), rows, spare=("BY", "CREATED", "FIELDS"))


def sweep_cancel(ctx: typer.Context, sweep_id: SweepArgument, as_json: JsonOption = False) -> None:
    """Cancel all jobs of a sweep that are not over.

    Example: trainyard sweep-cancel last
    """
    with client_of(ctx) as client:
        found = find_sweep(client, sweep_id)
        if set(found.counts) <= TERMINAL:
            message = f"sweep {found.id} is over already ({_tally(found.counts)}); there is nothing to cancel"
            raise ConflictError(message, code="sweep_finished")
        found = client.cancel_sweep(found.id)
    if as_json:
        emit(found)
    else:
        say(f"sweep {found.id}: cancellation asked for; {_tally(found.counts)}")


def find_sweep(client: Client, reference: str) -> SweepDetail:
    """The sweep with this id, or an id that starts or ends so, or the newest of this name; `last` is the newest.

    Raises:
        NotFoundError: there is none.
        UsageError: several ids start or end so.
    """
    reference = reference.strip()
    if reference == "last":
        newest = next(iter(client.sweeps()), None)
        if newest is None:
            raise NotFoundError("there is no sweep yet; try: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3")
        return client.sweep(newest.id)
    try:
        return client.sweep(reference)
    except NotFoundError:
        known = list(itertools.islice(client.sweeps(), LOOKED_AT))
        matches = [one.id for one in known if abbreviates(reference, one.id)]
        matches = matches or [one.id for one in known if one.name == reference][:1]
        if not matches:
            raise NotFoundError(f"there is no sweep {reference!r}", code="sweep_not_found") from None
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} sweeps have ids like {reference!r}; give more of it")
    return client.sweep(matches[0])


def parse_grid(grid: list[str]) -> dict[str, list[Any]]:
    """`optimizer.lr=1e-4,3e-4` as {"optimizer.lr": ["1e-4", "3e-4"]}; values are YAML, `[a, b]` one value each.

    Raises:
        UsageError: one is not of that form, has an empty value, or names a field twice.
    """
    axes: dict[str, list[Any]] = {}
    for axis in grid:
        path, equals, text = axis.partition("=")
        if not equals or not text or not all(path.split(".")):
            raise UsageError(f"--grid takes path=value,value, like optimizer.lr=1e-4,3e-4; not {axis!r}")
        if _EMPTY.search(_QUOTED.sub("''", text)):
            raise UsageError(f"--grid {axis}: a value is empty; leave out the comma, or write '' for an empty text")
        if path in axes:
            raise UsageError(f"--grid names {path} twice; give all of its values at once")
        axes[path] = read_value("--grid", axis, f"[{text}]", path)
    return axes


def show(found: SweepDetail) -> None:
    say(f"sweep       {found.id} ({found.name})")
    say(f"created     {age(found.created_at)} by {found.created_by}")
    together = f", {found.max_parallel} at once" if found.max_parallel else ""
    say(f"jobs        {_tally(found.counts)}{together}")
    rows: list[tuple[str | Text, ...]] = []
    for member in found.members:
        step = f"{member.progress.step}/{member.progress.total_steps}" if member.progress else "-"
        values = [str(member.values.get(field, "-")) for field in found.fields]
        loss = number(member.metrics.get("eval/loss", member.metrics.get("train/loss")))
        rows.append((member.job_id, *values, status_text(member.status or "deleted"), step, loss))
    table(("JOB", *found.fields, "STATUS", "STEP", "LOSS"), rows)


def _follow(client: Client, found: SweepDetail, *, as_json: bool) -> int:
    """A line whenever something changes, until all are over; the exit code of the worst."""
    said = ""
    try:
        while True:
            tally = _tally(found.counts)
            if tally != said and not as_json:
                say(tally)
            said = tally
            if set(found.counts) <= TERMINAL:
                break
            time.sleep(_LOOK_SECONDS)
            found = client.sweep(found.id)
    except KeyboardInterrupt:
        complain(f"stopped watching; its jobs go on. To end them: trainyard sweep-cancel {found.id}")
        return INTERRUPTED
    if as_json:
        emit(found)
    else:
        show(found)
    return FAILED if found.counts.get("failed") else CANCELLED if found.counts.get("cancelled") else 0


def _tally(counts: Any) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none left"
