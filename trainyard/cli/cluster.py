"""`cluster`: what there is to run on, and how much of it is free."""

from collections.abc import Iterator, Mapping, Sequence

import typer

from trainyard.cli.output import complain, duration, emit, say, table
from trainyard.cli.session import JsonOption, client_of
from trainyard.contract.wire.cluster import AccountResource, ClusterResource, GpuCount, PartitionResource


def cluster(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show partitions, their limits, and which nodes and GPUs are free.

    Example: trainyard cluster
    """
    with client_of(ctx) as client:
        found = client.cluster()
    if as_json:
        emit(found)
        return
    for line in _summary(found):
        say(line)
    if found.partitions:
        headings = ("PARTITION", "STATE", "TIME LIMIT", "NODES A JOB", "NODES", "GPUS FREE", "GROUPS")
        table(headings, [_row(partition) for partition in found.partitions])
    if found.error is not None:
        complain(f"the last attempt to ask again failed: {found.error}")


def _summary(found: ClusterResource) -> Iterator[str]:
    if found.age_seconds is None:
        yield f"the service has not heard from its scheduler ({found.backend}) yet; ask again in a minute"
        return
    yield f"backend {found.backend}, as of {duration(found.age_seconds)} ago"
    if found.slots is not None:
        yield f"{found.slots.free} of {found.slots.total} worker processes are free"
    if found.nodes:
        yield f"nodes: {_nodes(found.nodes)}"
    if found.gpus:
        yield f"GPUs free: {_gpus(found.gpus)}"
    if found.accounts:
        yield f"accounts: {', '.join(_account(account) for account in found.accounts)}"


def _row(partition: PartitionResource) -> tuple[str, ...]:
    limit = partition.time_limit_minutes
    return (
        partition.name + ("*" if partition.default else ""),
        partition.state,
        "none" if limit is None else duration(limit * 60),
        "any" if partition.max_nodes is None else f"up to {partition.max_nodes}",
        _nodes(partition.nodes),
        _gpus(partition.gpus) or "-",
        "all" if partition.groups is None else ", ".join(partition.groups),
    )


def _nodes(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in nodes.items()) or "none"


def _account(account: AccountResource) -> str:
    """`physics* (qos: long, normal)`; the default has a star."""
    qos = f" (qos: {', '.join(account.qos)})" if account.qos else ""
    return f"{account.name}{'*' if account.default else ''}{qos}"


def _gpus(gpus: Sequence[GpuCount]) -> str:
    """`3 of 4 a100`; an unknown number of free ones is a question mark."""
    return ", ".join(_of_type(one) for one in gpus)


def _of_type(one: GpuCount) -> str:
    free = "?" if one.free is None else str(one.free)
    return f"{free} of {one.total} {one.type or ''}".rstrip()
