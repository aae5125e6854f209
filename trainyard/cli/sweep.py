"""`sweep`, `sweeps` and `sweep-cancel`: one spec in several variants."""

import itertools
import re
import time
from typing import Annotated, Any

import typer
from rich.text import Text

from trainyard.cli.arguments import (
    ForceOption,
    JsonOption,
    KeyOption,
    SpecArgument,
    make_client,
)
from trainyard.cli.completion import complete_sweep
from trainyard.cli.errors import CANCELLED, FAILED, INTERRUPTED, UsageError
from trainyard.cli.output import (
    format_age,
    format_number,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_table,
    status_text,
)
from trainyard.cli.specs import CodeOption, read_spec, read_value, upload_code
from trainyard.client import Client, ConflictError, NotFoundError
from trainyard.client.references import SEARCH_LIMIT, is_abbreviation
from trainyard.contract.loss_metric import ENGINE_LOSS
from trainyard.contract.spec.training_spec import fields_reset_by
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import SweepDetail

_SWEEP_HELP = "Id, unique prefix or suffix of an id (at least 4 characters), name (its newest sweep), or `last`."
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=complete_sweep, help=_SWEEP_HELP)]

_POLL_SECONDS = 2.0

_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*["]""")
_EMPTY = re.compile(r"(?:^|,)\s*(?:,|$)")
"""An empty value before, between or after commas."""


def sweep(
    ctx: typer.Context,
    source: SpecArgument,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUE,...", help="A field and its comma-separated values; can be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set one field in all jobs.")
    ] = None,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of jobs in the scheduler at once; default: all.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Display name of the sweep.")] = None,
    code: CodeOption = None,
    follow: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow the sweep until all its jobs have ended.")
    ] = False,
    idempotency_key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit one job for every combination of field values.

    Example: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3 --grid seed=0,1 --max-parallel 2 --watch
    """
    if not grid:
        raise UsageError("a sweep needs at least one --grid PATH=VALUE,VALUE, like --grid optimizer.lr=1e-4,3e-4")
    axes = parse_grid(grid)
    with make_client(ctx) as client:
        document = read_spec(client, source, settings or [])
        document |= fields_reset_by(axes)
        upload_code(client, document, source, code)
        made = client.submit_sweep(
            document, grid=axes, max_parallel=max_parallel, name=name, idempotency_key=idempotency_key, force=force
        )
        if as_json:
            print_json(made)
        else:
            print_line(f"sweep {made.id} ({made.name}) accepted: {made.size} job{'' if made.size == 1 else 's'}")
        if follow:
            raise typer.Exit(_follow(client, made, as_json=as_json))
    if not as_json:
        print_line(
            f"see it with: trainyard sweeps {made.id}; compare its jobs with: trainyard compare --sweep {made.id}"
        )


def sweeps(
    ctx: typer.Context,
    sweep_id: Annotated[
        str | None,
        typer.Argument(
            metavar="SWEEP", autocompletion=complete_sweep, help=f"Show this sweep with its jobs. {_SWEEP_HELP}"
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number, newest first.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List sweeps, or show one with its jobs.

    Example: trainyard sweeps last
    """
    with make_client(ctx) as client:
        if sweep_id is not None:
            detail = find_sweep(client, sweep_id)
            if as_json:
                print_json(detail)
            else:
                show(detail)
            return
        listed = list(itertools.islice(client.sweeps(), limit))
    if as_json:
        print_json_lines(listed)
    elif not listed:
        print_error("no sweeps yet; try: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3")
    else:
        rows = [
            (s.id, s.name, _format_counts(s.counts), ", ".join(s.fields), format_age(s.created_at), s.created_by)
            for s in listed
        ]
        print_table(("SWEEP", "NAME", "JOBS", "FIELDS", "CREATED", "BY"), rows, optional=("BY", "CREATED", "FIELDS"))


def sweep_cancel(ctx: typer.Context, sweep_id: SweepArgument, as_json: JsonOption = False) -> None:
    """Cancel all active jobs of a sweep.

    Example: trainyard sweep-cancel last
    """
    with make_client(ctx) as client:
        detail = find_sweep(client, sweep_id)
        if set(detail.counts) <= TERMINAL:
            message = (
                f"sweep {detail.id} has already ended ({_format_counts(detail.counts)}); there is nothing to cancel"
            )
            raise ConflictError(message, code="sweep_finished")
        detail = client.cancel_sweep(detail.id)
    if as_json:
        print_json(detail)
    else:
        print_line(f"sweep {detail.id}: cancellation requested; {_format_counts(detail.counts)}")


def find_sweep(client: Client, reference: str) -> SweepDetail:
    """Return the sweep with this id, a unique prefix or suffix of an id, or a name; `last` is the newest sweep.

    Raises:
        NotFoundError: there is no such sweep.
        UsageError: the abbreviation is ambiguous.
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
        listed = list(itertools.islice(client.sweeps(), SEARCH_LIMIT))
        matches = [one.id for one in listed if is_abbreviation(reference, one.id)]
        matches = matches or [one.id for one in listed if one.name == reference][:1]
        if not matches:
            raise NotFoundError(f"there is no sweep {reference!r}", code="sweep_not_found") from None
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} sweeps have ids like {reference!r}; use a longer part")
    return client.sweep(matches[0])


def parse_grid(grid: list[str]) -> dict[str, list[Any]]:
    """Parse `optimizer.lr=1e-4,3e-4` to {"optimizer.lr": ["1e-4", "3e-4"]}; values are YAML, and `[a, b]` is one value.

    Raises:
        UsageError: an axis has another form, has an empty value, or repeats a field.
    """
    axes: dict[str, list[Any]] = {}
    for axis in grid:
        path, equals, text = axis.partition("=")
        if not equals or not text or not all(path.split(".")):
            raise UsageError(f"--grid takes path=value,value, like optimizer.lr=1e-4,3e-4; not {axis!r}")
        if _EMPTY.search(_QUOTED.sub("''", text)):
            raise UsageError(f"--grid {axis}: a value is empty; remove the comma, or write '' for an empty string")
        if path in axes:
            raise UsageError(f"--grid names {path} twice; list all its values in one --grid")
        axes[path] = read_value("--grid", axis, f"[{text}]", path)
    return axes


def show(detail: SweepDetail) -> None:
    print_line(f"sweep       {detail.id} ({detail.name})")
    print_line(f"created     {format_age(detail.created_at)} by {detail.created_by}")
    parallel = f", {detail.max_parallel} at once" if detail.max_parallel else ""
    print_line(f"jobs        {_format_counts(detail.counts)}{parallel}")
    rows: list[tuple[str | Text, ...]] = []
    for member in detail.members:
        step = member.progress.step_text() if member.progress else "-"
        values = [str(member.values.get(field, "-")) for field in detail.fields]
        loss = format_number(member.metrics.get("eval/loss", member.metrics.get(member.loss_metric or ENGINE_LOSS)))
        rows.append((member.job_id, *values, status_text(member.status or "deleted"), step, loss))
    print_table(("JOB", *detail.fields, "STATUS", "STEP", "LOSS"), rows)


def _follow(client: Client, detail: SweepDetail, *, as_json: bool) -> int:
    """Print each change until all members have ended; return the exit code of the worst outcome."""
    previous = ""
    try:
        while True:
            tally = _format_counts(detail.counts)
            if tally != previous and not as_json:
                print_line(tally)
            previous = tally
            if set(detail.counts) <= TERMINAL:
                break
            time.sleep(_POLL_SECONDS)
            detail = client.sweep(detail.id)
    except KeyboardInterrupt:
        print_error(f"stopped watching; the jobs continue. To cancel them: trainyard sweep-cancel {detail.id}")
        return INTERRUPTED
    if as_json:
        print_json(detail)
    else:
        show(detail)
    return FAILED if detail.counts.get("failed") else CANCELLED if detail.counts.get("cancelled") else 0


def _format_counts(counts: Any) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none left"
