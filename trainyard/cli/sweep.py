"""`sweep`, `sweeps` and `sweep-cancel`: several variants of a spec."""

import itertools
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import (
    ForceOption,
    JsonOption,
    KeyOption,
    SpecArgument,
    find_sweep,
    make_client,
)
from trainyard.cli.completion import complete_sweep
from trainyard.cli.output import (
    format_age,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_table,
    short_ids,
)
from trainyard.cli.specs import CodeOption, read_spec, upload_code
from trainyard.cli.sweep_ranges import parse_grid, parse_ranges, require_variants, search_options
from trainyard.cli.sweep_view import follow_sweep, format_counts, has_ended, show
from trainyard.client import Client, ConflictError
from trainyard.contract.spec.training_spec import fields_reset_by
from trainyard.contract.wire.search import RANGE_FORMS
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
