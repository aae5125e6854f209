"""The options of `sweep`."""

from typing import Annotated

import typer

from trainyard.contract.wire.search import RANGE_FORMS

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
