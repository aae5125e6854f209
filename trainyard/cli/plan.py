"""`plan`: shows the needs of a spec before it is submitted."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from trainyard.cli.arguments import JsonOption, SpecArgument, make_client
from trainyard.cli.data import print_accounts
from trainyard.cli.data_plan import plan_data
from trainyard.cli.errors import FAILED
from trainyard.cli.output import format_duration, print_error, print_json, print_line, print_table, print_text
from trainyard.cli.specs import read_spec
from trainyard.client import Client
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.data_accounts import (
    MAX_PLANNED_RECORDS,
    MAX_PLANNED_SECONDS,
    PLANNED_RECORDS,
    PLANNED_SECONDS,
)
from trainyard.contract.wire.plans import MemoryParts, PlanResource, StartEstimateResource, StrategyPlan

_POLL_SECONDS = 1.0
"""Seconds between two requests for the start estimate."""


def plan(
    ctx: typer.Context,
    source: SpecArgument,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Set one field, as in gpus=8; can be repeated."),
    ] = None,
    estimate_start: Annotated[
        bool, typer.Option("--start-estimate", help="Also request a start estimate from Slurm.")
    ] = False,
    patience: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, max=MAX_PLANNED_SECONDS, help="Seconds to wait for the start estimate, or to read data."
        ),
    ] = PLANNED_SECONDS,
    with_script: Annotated[bool, typer.Option("--script", help="Also show the batch script.")] = False,
    with_data: Annotated[
        bool, typer.Option("--data", help="Also read the data, and show what a job would learn of it.")
    ] = False,
    records: Annotated[
        int, typer.Option(min=1, max=MAX_PLANNED_RECORDS, help="With --data: records of each source, at most.")
    ] = PLANNED_RECORDS,
    as_json: JsonOption = False,
) -> None:
    """Show the memory that a spec needs by strategy. Nothing is submitted.

    With --data, this machine reads the data if it has the files and the packages, or else the service does.
    The exit code is 1 if the spec does not fit, or if a job would be refused because of its data.

    Example: trainyard plan spec.yaml --set gpus=8
    """
    accounts = None
    with make_client(ctx) as client:
        document = read_spec(client, source, settings or [])
        result = client.plan(document, estimate_start=estimate_start)
        if result.start_estimate is not None:
            estimate = _wait_for_estimate(client, result.start_estimate, time.monotonic() + patience)
            result = result.model_copy(update={"start_estimate": estimate})
        print_json(result) if as_json else _show(result, with_script=with_script)
        if with_data:
            accounts = plan_data(client, document, result.spec, records, max(patience, 1.0), quiet=as_json)
    if accounts is not None:
        print_json(accounts) if as_json else print_accounts(accounts)
    raise typer.Exit(FAILED if result.fits is False or (accounts and accounts.problem) else 0)


def _show(result: PlanResource, *, with_script: bool) -> None:
    for line in _summary(result):
        print_line(line)
    if result.strategies:
        per_rank = "PER RANK" if result.accelerator == "cpu" else "PER GPU"
        headings = ("STRATEGY", "FITS", per_rank, "WEIGHTS", "GRADS", "OPTIMIZER", "ACTIVATIONS", "OTHER", "MICRO SIZE")
        optional = ("OTHER", "GRADS", "OPTIMIZER", "WEIGHTS", "ACTIVATIONS")
        print_table(headings, [_row(one) for one in result.strategies], optional=optional)
        if any(one.fits is None for one in result.strategies):
            print_line("?: unknown, because the available memory or the model's activation memory is unknown")
    if result.start_estimate is not None:
        print_line(_estimate_line(result.start_estimate))
    for change in result.changes:
        print_line(f"would fit: {change.message}")
    for warning in result.warnings:
        print_error(f"note: {warning}")
    if with_script and result.script:
        print_text(result.script if result.script.endswith("\n") else f"{result.script}\n")


def _wait_for_estimate(client: Client, estimate: StartEstimateResource, until: float) -> StartEstimateResource:
    """Return the start estimate when it is answered, or still waiting at the time `until`."""
    while estimate.state == "waiting" and estimate.id is not None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        estimate = client.start_estimate(estimate.id)
    return estimate


def _estimate_line(estimate: StartEstimateResource) -> str:
    if estimate.state == "waiting":
        return f"the scheduler has not answered yet: GET /v1/start-estimates/{estimate.id} will"
    if estimate.estimated_start is None:
        return estimate.message
    seconds = (estimate.estimated_start - datetime.now(UTC)).total_seconds()
    return f"{estimate.message} ({f'in {format_duration(seconds)}' if seconds > 0 else 'at once'})"


def _summary(result: PlanResource) -> Iterator[str]:
    if result.model is not None:
        part = f", {result.model.trained:,} of them trained" if result.model.trained < result.model.parameters else ""
        yield f"{result.model.parameters:,} parameters{part}"
    if result.gpus:
        yield ("each rank: " if result.accelerator == "cpu" else "GPUs: ") + ", ".join(
            f"{gpu.type or 'unknown type'} ({format_size(gpu.min_bytes) if gpu.min_bytes else 'memory unknown'})"
            for gpu in result.gpus
        )
    yield f"strategy {result.strategy}: {result.strategy_reason}"
    yield result.summary
    if environment := _environment(result.spec.get("environment", {})):
        yield f"environment: {environment}"
    if host := next((one.host_bytes for one in result.strategies if one.chosen), None):
        yield f"host memory: roughly {format_size(host)} for each rank"
    if result.disk is not None:
        disk = result.disk
        checkpoints = f"{disk.checkpoints} checkpoints of {format_size(disk.checkpoint_bytes)}"
        yield f"disk: {format_size(disk.total_bytes)} at most ({checkpoints}, export {format_size(disk.export_bytes)})"


def _environment(section: dict[str, Any]) -> str:
    """Return the Python or container, the modules and the setup of the ranks."""
    parts = [f"{name} {section[name]}" for name in ("python", "venv", "conda") if section.get(name)]
    if container := section.get("container"):
        parts.append(f"container {container['image']}")
    if modules := section.get("modules"):
        parts.append(f"modules {' '.join(modules)}")
    if lines := section.get("setup"):
        parts.append(f"{len(lines)} line{'s' * (len(lines) > 1)} of setup")
    return ", ".join(parts)


def _row(one: StrategyPlan) -> tuple[str, ...]:
    fits = "?" if one.fits is None else "yes" if one.fits else "no"
    name = one.strategy + ("*" if one.chosen else "")
    if one.parts is None or one.peak_bytes is None:
        return name, fits, f"> {format_size(one.state_bytes)}", "", "", "", "", "", ""
    parts = one.parts
    other = parts.logits + parts.transient
    return (
        name,
        fits,
        format_size(one.peak_bytes),
        format_size(parts.parameters + parts.gathered),
        format_size(_gradients(parts)),
        format_size(parts.optimizer),
        format_size(parts.activations),
        format_size(other),
        str(one.micro_size),
    )


def _gradients(parts: MemoryParts) -> int:
    return parts.gradients + parts.buckets
