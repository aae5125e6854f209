"""`cluster`: partitions, nodes and GPUs, and how many are free. `maintenance`: stop submissions to the scheduler."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.errors import show_help
from trainyard.cli.output import format_duration, print_error, print_json, print_line, print_table
from trainyard.contract.wire.cluster import (
    AccountResource,
    ClusterResource,
    GpuCount,
    MaintenanceResource,
    PartitionResource,
)

maintenance = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)


def cluster(
    ctx: typer.Context,
    include: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Let jobs use an excluded node again; requires an administrator's token."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show partitions, their limits, free nodes and GPUs, and the nodes that jobs avoid.

    Example: trainyard cluster
    """
    with make_client(ctx) as client:
        if include is not None:
            client.include_node(include)
        snapshot = client.cluster()
    if as_json:
        print_json(snapshot)
        return
    for line in _summary(snapshot):
        print_line(line)
    if snapshot.partitions:
        headings = ("PARTITION", "STATE", "TIME LIMIT", "NODES PER JOB", "NODES", "GPUS FREE", "GROUPS")
        print_table(headings, [_row(partition) for partition in snapshot.partitions])
    for line in _node_faults(snapshot):
        print_line(line)
    if snapshot.error is not None:
        print_error(f"the last refresh failed: {snapshot.error}")


def _summary(snapshot: ClusterResource) -> Iterator[str]:
    if snapshot.age_seconds is None:
        yield f"the scheduler ({snapshot.backend}) has not responded yet; try again in a minute"
        return
    yield f"backend {snapshot.backend}, as of {format_duration(snapshot.age_seconds)} ago"
    if snapshot.slots is not None:
        yield f"{snapshot.slots.free} of {snapshot.slots.total} worker processes are free"
    if snapshot.nodes:
        yield f"nodes: {_nodes(snapshot.nodes)}"
    if snapshot.gpus:
        yield f"GPUs free: {_gpus(snapshot.gpus)}"
    if snapshot.accounts:
        yield f"accounts: {', '.join(_account(account) for account in snapshot.accounts)}"


def _node_faults(snapshot: ClusterResource) -> Iterator[str]:
    for node in snapshot.excluded_nodes:
        times = f"from {node.since:%H:%M} until {node.until:%H:%M} UTC"
        yield f"excluded: {node.node} in {', '.join(node.partitions)}, {times}: {node.cause} ({node.jobs} jobs)"
        for fault in node.faults:
            yield f"  {fault.job_id}, attempt {fault.attempt}: {fault.message}"
        yield f"  to take it out of service: {node.drain_command}"
        yield f"  to let jobs use it again: trainyard cluster --include {node.node}"
    if snapshot.node_warning is not None:
        yield f"warning: {snapshot.node_warning}"


def _row(partition: PartitionResource) -> tuple[str, ...]:
    limit = partition.time_limit_minutes
    return (
        partition.name + ("*" if partition.default else ""),
        partition.state,
        "none" if limit is None else format_duration(limit * 60),
        "any" if partition.max_nodes is None else f"up to {partition.max_nodes}",
        _nodes(partition.nodes),
        _gpus(partition.gpus) or "-",
        "all" if partition.groups is None else ", ".join(partition.groups),
    )


def _nodes(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in nodes.items()) or "none"


def _account(account: AccountResource) -> str:
    """Return an account, such as `physics* (qos: long, normal)`; the default account has an asterisk."""
    qos = f" (qos: {', '.join(account.qos)})" if account.qos else ""
    return f"{account.name}{'*' if account.default else ''}{qos}"


def _gpus(gpus: Sequence[GpuCount]) -> str:
    """Return free and all GPUs by type, such as `3 of 4 a100`; `?` for an unknown number of free GPUs."""
    return ", ".join(_gpus_of_type(one) for one in gpus)


def _gpus_of_type(one: GpuCount) -> str:
    free = "?" if one.free is None else str(one.free)
    return f"{free} of {one.total} {one.type or ''}".rstrip()


@maintenance.command("on")
def start_maintenance(
    ctx: typer.Context,
    message: Annotated[str, typer.Option("--message", help="Why, and for how long; shown to all users.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Submit nothing from now on: jobs are accepted and wait, running ones continue. Requires an administrator's token.

    Example: trainyard maintenance on --message "Slurm upgrade until 14:00"
    """
    with make_client(ctx) as client:
        _print_mode(client.set_maintenance(True, message), as_json=as_json)


@maintenance.command("off")
def end_maintenance(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Submit the waiting jobs. Requires an administrator's token.

    Example: trainyard maintenance off
    """
    with make_client(ctx) as client:
        _print_mode(client.set_maintenance(False), as_json=as_json)


@maintenance.command("status")
def show_maintenance(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show whether the maintenance mode is on, since when and by whom.

    Example: trainyard maintenance status
    """
    with make_client(ctx) as client:
        _print_mode(client.maintenance(), as_json=as_json)


def _print_mode(mode: MaintenanceResource, *, as_json: bool) -> None:
    if as_json:
        print_json(mode)
    elif mode.active:
        message = f": {mode.message}" if mode.message else ""
        print_line(f"maintenance mode is on since {mode.since:%Y-%m-%d %H:%M}Z by {mode.started_by}{message}")
    else:
        print_line("maintenance mode is off")
