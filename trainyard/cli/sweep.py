"""`sweep`, `sweeps` and `sweep-cancel`: several variants of a spec."""

import itertools
import re
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import ForceOption, JsonOption, KeyOption, SpecArgument, find_sweep, make_client
from trainyard.cli.completion import complete_sweep
from trainyard.cli.errors import UsageError
from trainyard.cli.output import (
    format_age,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_table,
    short_ids,
)
from trainyard.cli.specs import CodeOption, read_spec, read_value, upload_code
from trainyard.cli.sweep_view import follow_sweep, format_counts, has_ended, show
from trainyard.client import Client, ConflictError
from trainyard.contract.spec.field_types import is_text
from trainyard.contract.spec.training_spec import fields_reset_by
from trainyard.contract.wire.search import RANGE_FORMS, parse_range, typed_value
from trainyard.contract.wire.sweeps import SweepDetail

GridOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH=VALUE,...", help="A field and its comma-separated values; can be repeated."),
]
SearchOption = Annotated[
    str | None,
    typer.Option("--search", help="Choose values as the sweep runs: random, grid, tpe, asha or hyperband."),
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH=RANGE", help=f"The range of a field: {RANGE_FORMS}; can be repeated."),
]
MetricOption = Annotated[str | None, typer.Option(help="Metric of a search; default: that of checkpoint.keep_best.")]
ModeOption = Annotated[str | None, typer.Option(help="`min` or `max`: which values of the metric are better.")]
TrialsOption = Annotated[int | None, typer.Option(min=1, help="Number of jobs of a search; default: 30.")]
HoursOption = Annotated[
    float | None, typer.Option(help="GPU hours after which a search starts no job and continues none.")
]
SeedOption = Annotated[int | None, typer.Option(min=0, help="Seed of a search; default: 0.")]
RungOption = Annotated[
    int | None, typer.Option(min=1, help="asha and hyperband: steps of the first rung; default: a 27th.")
]
EtaOption = Annotated[
    int | None, typer.Option(min=2, max=10, help="asha and hyperband: one of ETA jobs continues; default: 3.")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set one field in all jobs.")
]
ParallelOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of jobs in the scheduler at once; default: all.")
]
NameOption = Annotated[str | None, typer.Option(help="Display name of the sweep.")]
FollowOption = Annotated[bool, typer.Option("--watch", "-w", help="Follow the sweep until all its jobs have ended.")]


_SWEEP_HELP = "Id, unique prefix or suffix of an id (at least 4 characters), name (its newest sweep), or `last`."
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=complete_sweep, help=_SWEEP_HELP)]


def sweep(
    ctx: typer.Context,
    source: SpecArgument,
    grid: GridOption = None,
    algorithm: SearchOption = None,
    param: ParamOption = None,
    metric: MetricOption = None,
    mode: ModeOption = None,
    max_trials: TrialsOption = None,
    max_gpu_hours: HoursOption = None,
    seed: SeedOption = None,
    min_steps: RungOption = None,
    eta: EtaOption = None,
    settings: SettingsOption = None,
    max_parallel: ParallelOption = None,
    name: NameOption = None,
    code: CodeOption = None,
    follow: FollowOption = False,
    idempotency_key: KeyOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Submit one job for every combination of field values, or search for the best values.

    Example: trainyard sweep digits_ddp --grid optimizer.lr=1e-3,3e-3 --grid seed=0,1 --max-parallel 2 --watch
    A search: trainyard sweep digits_ddp --search asha --param optimizer.lr=log:1e-5:1e-1 --max-trials 30 --watch
    """
    options = {"metric": metric, "mode": mode, "max_trials": max_trials, "max_gpu_hours": max_gpu_hours}
    options |= {"seed": seed, "min_steps": min_steps, "eta": eta}
    axes, search = parse_grid(grid or []), search_options(algorithm, parse_ranges(param or []), options)
    require_variants(axes, search)
    with make_client(ctx) as client:
        document = read_spec(client, source, settings or [])
        document |= fields_reset_by(axes or search["space"])
        upload_code(client, document, source, code)
        given: dict[str, Any] = {"grid": axes or None, "search": search or None, "max_parallel": max_parallel}
        made = client.submit_sweep(document, **given, name=name, idempotency_key=idempotency_key, force=force)
        _announce(client, made, as_json=as_json)
        if follow:
            raise typer.Exit(follow_sweep(client, made, as_json=as_json))
    if not as_json:
        print_line(
            f"see it with: trainyard sweeps {made.id}; compare its jobs with: trainyard compare --sweep {made.id}"
        )


def _announce(client: Client, made: SweepDetail, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    size = f"up to {made.search.trial_limit}" if made.search else str(made.size)
    print_line(f"sweep {made.id} ({made.name}), {size} job{'' if size == '1' else 's'}: {client.sweep_url(made.id)}")


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
        short = short_ids([s.id for s in listed])
        rows = [
            (short[s.id], s.name, format_counts(s.counts), ", ".join(s.fields), format_age(s.created_at), s.created_by)
            for s in listed
        ]
        print_table(("SWEEP", "NAME", "JOBS", "FIELDS", "CREATED", "BY"), rows, optional=("BY", "CREATED", "FIELDS"))


def sweep_cancel(ctx: typer.Context, sweep_id: SweepArgument, as_json: JsonOption = False) -> None:
    """Cancel all active jobs of a sweep.

    Example: trainyard sweep-cancel last
    """
    with make_client(ctx) as client:
        detail = find_sweep(client, sweep_id)
        if has_ended(detail):
            message = (
                f"sweep {detail.id} has already ended ({format_counts(detail.counts)}); there is nothing to cancel"
            )
            raise ConflictError(message, code="sweep_finished")
        detail = client.cancel_sweep(detail.id)
    if as_json:
        print_json(detail)
    else:
        print_line(f"sweep {detail.id}: cancellation requested; {format_counts(detail.counts)}")


_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*["]""")
_EMPTY = re.compile(r"(?:^|,)\s*(?:,|$)")
"""An empty value before, between or after commas."""


def parse_grid(grid: list[str]) -> dict[str, list[Any]]:
    """Parse `optimizer.lr=1e-4,3e-4` to {"optimizer.lr": [0.0001, 0.0003]}; values are YAML, and `[a, b]` is a single
    value.

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
        values = read_value("--grid", axis, f"[{text}]", path)
        # YAML reads 1e-2, without a dot, as text, which is right only in quotes or for a field of text.
        is_meant = is_text(path) or _QUOTED.search(text)
        axes[path] = values if is_meant else [typed_value(one) if isinstance(one, str) else one for one in values]
    return axes


def parse_ranges(params: list[str]) -> dict[str, Any]:
    """Parse `optimizer.lr=log:1e-5:1e-1` to the range of each field.

    Raises:
        UsageError: a range has another form, or a field is named twice.
    """
    space: dict[str, Any] = {}
    for param in params:
        path, equals, text = param.partition("=")
        if not equals or not text or not all(path.split(".")):
            raise UsageError(f"--param takes path=range, like optimizer.lr=log:1e-5:1e-1; not {param!r}")
        if path in space:
            raise UsageError(f"--param names {path} twice")
        try:
            space[path] = parse_range(text, as_text=is_text(path))
        except ValueError as error:
            is_list = "," in text and ":" not in text
            hint = f". To run each of these values: --grid {param}" if is_list else ""
            raise UsageError(f"--param {param}: {text!r} {error}{hint}") from None
    return space


def search_options(algorithm: str | None, space: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a search; empty without `--search` and `--param`.

    Raises:
        UsageError: an option needs a search, or the search has no range.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if algorithm is None and not space:
        if given:
            raise UsageError(f"--{next(iter(given)).replace('_', '-')} needs --search and --param PATH=RANGE")
        return {}
    if not space:
        raise UsageError(f"--search {algorithm} needs at least one --param PATH=RANGE, like optimizer.lr=log:1e-5:1e-1")
    return {"algorithm": algorithm or "tpe", "space": space, **given}


def require_variants(axes: dict[str, Any], search: dict[str, Any]) -> None:
    """Raises UsageError: there is neither a grid nor a search, or there are both."""
    if bool(axes) == bool(search):
        raise UsageError(
            "a sweep needs at least one --grid PATH=VALUE,VALUE, like --grid optimizer.lr=1e-4,3e-4, or ranges to "
            "search, like --search tpe --param optimizer.lr=log:1e-5:1e-1"
        )
