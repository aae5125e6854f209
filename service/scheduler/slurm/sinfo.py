"""Parsing the output of `sinfo` into a cluster snapshot. Pure functions.

`sinfo` prints one line for each node and partition. The wide form has columns of fixed width, which all releases
format alike; the short form is for releases without the column of used GPUs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from service.scheduler.base import ClusterReport
from trainyard.contract.wire.cluster import GpuCount, NodeShape, PartitionResource

_COLUMN_WIDTHS = {
    "Partition": 80,
    "Available": 12,
    "Time": 24,
    "NodeList": 80,
    "StateLong": 32,
    "Size": 24,
    "Groups": 160,
    "Gres": 240,
    "DefaultTime": 24,
    "GresUsed": 320,
}
WIDE_FORMAT = "--Format=" + ",".join(f"{name}:{width}" for name, width in _COLUMN_WIDTHS.items())
SHORT_FORMAT = "--format=%P|%a|%l|%N|%T|%s|%g|%G|%L"

_FREE_STATES = frozenset({"idle", "mixed", "allocated", "completing", "planned"})
"""States in which a node runs jobs, or will when it has room."""
_GPU = re.compile(r"gpu(?::(?!no_consume:)([^:()]+))?(?::no_consume)?:(\d+)(?:\(.*)?")
"""A type may begin with a digit, as in MIG slices (`gpu:1g.10gb:2`)."""


@dataclass(frozen=True)
class NodeLine:
    """A node in a partition."""

    partition: str
    default: bool
    available: str
    time_limit_minutes: int | None
    node: str
    state: str
    takes_jobs: bool
    max_nodes: int | None
    groups: tuple[str, ...] | None
    gpus: Mapping[str, int]
    default_time_minutes: int | None = None
    used_gpus: Mapping[str, int] | None = field(default=None)
    """Used GPUs by type, like `gpus`. None: unknown."""


def parse_wide(text: str) -> list[NodeLine]:
    """The lines in the output of `sinfo --Node --noheader` with `WIDE_FORMAT`."""
    return [line for row in text.splitlines() if (line := _node_line(_split_columns(row))) is not None]


def parse_short(text: str) -> list[NodeLine]:
    """The lines in the output of `sinfo --Node --noheader` with `SHORT_FORMAT`."""
    rows = (row.split("|", len(_COLUMN_WIDTHS) - 2) for row in text.splitlines())
    return [line for row in rows if len(row) == len(_COLUMN_WIDTHS) - 1 and (line := _node_line(row)) is not None]


def _split_columns(row: str) -> list[str]:
    # Slurm counts bytes: a name with umlauts has fewer characters than its column.
    line, cells, start = row.encode(), [], 0
    for width in _COLUMN_WIDTHS.values():
        cells.append(line[start : start + width].decode(errors="replace").strip())
        start += width
    return cells


def _node_line(cells: Sequence[str]) -> NodeLine | None:
    name, available, limit, node, state, size, groups, gres, default_time = cells[:9]
    if not name:
        return None
    state_name = state.rstrip("*~#!%$@^+-").lower()
    used_gpus = parse_gpus(cells[9]) if len(cells) > 9 else None
    return NodeLine(
        partition=name.removesuffix("*"),
        default=name.endswith("*"),
        available=available.lower(),
        time_limit_minutes=parse_minutes(limit),
        node=node,
        state=state_name,
        # `*`: the node does not respond; `!`, `%`, `$`, `@`, `^`: it goes down, is reserved or reboots.
        takes_jobs=state_name in _FREE_STATES and not set(state) & set("*!%$@^"),
        max_nodes=_upper_bound(size),
        groups=None if groups.lower() in ("all", "", "(null)") else tuple(groups.split(",")),
        gpus=parse_gpus(gres),
        default_time_minutes=parse_minutes(default_time),
        used_gpus=used_gpus,
    )


def parse_gpus(gres: str) -> dict[str, int]:
    """The GPUs by type: {"a100": 4, "": 2} for `gpu:a100:4(S:0-1),gpu:2`. Other resources are ignored."""
    gpus: Counter[str] = Counter()
    for part in re.split(r",(?![^(]*\))", gres):
        if match := _GPU.fullmatch(part.strip()):
            gpus[match[1] or ""] += int(match[2])
    return dict(gpus)


def parse_minutes(limit: str) -> int | None:
    """The minutes of a time such as `2-00:00:00`, `1:00:00` or `30:00` (minutes and seconds); None for no limit."""
    days, _, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, days or "0"]):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return int(days or 0) * 1440 + seconds // 60


def _upper_bound(size: str) -> int | None:
    """The upper bound: 8 for `1-8` and `8`, None for `1-infinite`."""
    last = size.rpartition("-")[2]
    return int(last) if last.isdigit() else None


def snapshot(lines: Sequence[NodeLine]) -> ClusterReport:
    """The snapshot, with partitions sorted by name; the cluster's totals count each node once."""
    partitions: dict[str, list[NodeLine]] = {}
    for line in lines:
        partitions.setdefault(line.partition, []).append(line)
    nodes = {line.node: line for line in lines if line.node}
    return ClusterReport(
        partitions=[_partition(partitions[name]) for name in sorted(partitions)],
        nodes=dict(sorted(Counter(line.state for line in nodes.values()).items())),
        gpus=_gpus(nodes.values()),
        members={name: [one.node for one in partitions[name] if one.node] for name in sorted(partitions)},
    )


def _partition(lines: Sequence[NodeLine]) -> PartitionResource:
    first, nodes = lines[0], [line for line in lines if line.node]
    shapes = Counter(tuple(sorted(line.gpus.items())) for line in nodes)
    return PartitionResource(
        name=first.partition,
        default=first.default,
        state=first.available,
        time_limit_minutes=first.time_limit_minutes,
        default_time_minutes=first.default_time_minutes,
        max_nodes=first.max_nodes,
        groups=list(first.groups) if first.groups is not None else None,
        nodes=dict(sorted(Counter(line.state for line in nodes).items())),
        gpus=_gpus(nodes),
        shapes=[NodeShape(nodes=count, gpus=dict(gpus)) for gpus, count in sorted(shapes.items())],
    )


def _gpus(lines: Iterable[NodeLine]) -> list[GpuCount]:
    total: Counter[str] = Counter()
    free: dict[str, int | None] = {}
    for line in lines:
        for type_, count in line.gpus.items():
            total[type_] += count
            sum_, node_free = free.get(type_, 0), _free(line, type_)
            free[type_] = None if sum_ is None or node_free is None else sum_ + node_free
    return [GpuCount(type=type_ or None, total=total[type_], free=free[type_]) for type_ in sorted(total)]


def _free(line: NodeLine, type_: str) -> int | None:
    """The free GPUs of a type on a node; None if the type of the used GPUs is unknown."""
    if not line.takes_jobs:
        return 0
    if line.used_gpus is None:
        return None
    used = dict(line.used_gpus)
    untyped = used.pop("", 0) if type_ else 0
    if untyped and len(line.gpus) > 1:
        return None
    return max(0, line.gpus[type_] - used.get(type_, 0) - untyped)
