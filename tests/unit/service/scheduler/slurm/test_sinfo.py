"""Parsing of the output of sinfo, of several releases."""

import pytest

from service.scheduler.slurm.sinfo import WIDE_FORMAT, parse_gpus, parse_minutes, parse_short, parse_wide, snapshot

_WIDTHS = [
    int(part.split(":")[1]) for part in WIDE_FORMAT.removeprefix("--format=").removeprefix("--Format=").split(",")
]


def wide(*cells: str, default_time: str = "n/a") -> str:
    cells = (*cells[:-1], default_time, cells[-1])
    return "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


SLURM_22 = "\n".join(
    [
        wide("gpu*", "up", "infinite", "node1", "mixed", "1-infinite", "all", "gpu:2", "gpu:1"),
        wide("minute", "up", "1:00", "node1", "mixed", "1-infinite", "all", "gpu:2", "gpu:1"),
        wide("gpu*", "up", "infinite", "node2", "idle", "1-infinite", "all", "gpu:2", "gpu:0"),
        wide("minute", "up", "1:00", "node2", "idle", "1-infinite", "all", "gpu:2", "gpu:0"),
    ]
)
SLURM_24 = "\n".join(
    [
        wide("a100", "up", "2-00:00:00", "g01", "mixed", "1-4", "ml,ops", "gpu:a100:4(S:0-1)", "gpu:a100:3(IDX:0,2-3)"),
        wide(
            "a100", "up", "2-00:00:00", "g02", "drained*", "1-4", "ml,ops", "gpu:a100:4(S:0-1)", "gpu:a100:0(IDX:N/A)"
        ),
        wide("a100", "up", "2-00:00:00", "g03", "idle~", "1-4", "ml,ops", "gpu:a100:4(S:0-1)", "gpu:a100:0(IDX:N/A)"),
        wide("cpu", "drain", "30:00", "c01", "allocated", "1-infinite", "all", "(null)", "gpu:0"),
    ]
)


class TestWideFormat:
    def test_a_node_in_two_partitions_counts_once(self) -> None:
        cluster = snapshot(parse_wide(SLURM_22))
        assert cluster.nodes == {"idle": 1, "mixed": 1}
        assert cluster.members["gpu"] == [*dict.fromkeys(line.node for line in parse_wide(SLURM_22))]
        assert [(gpu.type, gpu.total, gpu.free) for gpu in cluster.gpus] == [(None, 4, 3)]

    def test_partitions_with_their_limits(self) -> None:
        gpu, minute = snapshot(parse_wide(SLURM_22)).partitions
        assert (gpu.name, gpu.default, gpu.time_limit_minutes, gpu.max_nodes, gpu.groups) == (
            "gpu",
            True,
            None,
            None,
            None,
        )
        assert (minute.name, minute.default, minute.time_limit_minutes) == ("minute", False, 1)
        assert [(shape.nodes, shape.gpus) for shape in gpu.shapes] == [(2, {"": 2})]

    def test_default_time_limits_of_partitions(self) -> None:
        line = wide("gpu*", "up", "1-00:00:00", "n1", "idle", "1", "all", "gpu:2", "gpu:0", default_time="30:00")
        (gpu,) = snapshot(parse_wide(line)).partitions
        assert (gpu.time_limit_minutes, gpu.default_time_minutes) == (1440, 30)
        assert snapshot(parse_wide(SLURM_22)).partitions[0].default_time_minutes is None

    def test_nodes_that_run_no_jobs_have_no_free_gpus(self) -> None:
        a100, cpu = snapshot(parse_wide(SLURM_24)).partitions
        assert [(gpu.type, gpu.total, gpu.free) for gpu in a100.gpus] == [("a100", 12, 1 + 0 + 4)]
        assert a100.nodes == {"drained": 1, "idle": 1, "mixed": 1}
        assert (a100.time_limit_minutes, a100.max_nodes, a100.groups) == (2880, 4, ["ml", "ops"])
        assert (cpu.state, cpu.time_limit_minutes, cpu.gpus, cpu.nodes) == ("drain", 30, [], {"allocated": 1})

    @pytest.mark.parametrize("state", ["idle*", "mixed!", "idle$", "idle@", "down", "draining", "reserved", "maint"])
    def test_states_without_free_gpus(self, state: str) -> None:
        line = wide("p", "up", "1:00", "n", state, "1", "all", "gpu:a100:4", "gpu:a100:1")
        assert snapshot(parse_wide(line)).gpus[0].free == 0

    @pytest.mark.parametrize("state", ["idle", "idle~", "idle#", "mixed-", "mixed", "allocated", "completing"])
    def test_states_with_free_gpus(self, state: str) -> None:
        line = wide("p", "up", "1:00", "n", state, "1", "all", "gpu:a100:4", "gpu:a100:1")
        assert snapshot(parse_wide(line)).gpus[0].free == 3

    def test_untyped_used_gpus_count_for_the_only_type(self) -> None:
        line = wide("p", "up", "1:00", "n", "mixed", "1", "all", "gpu:a100:4", "gpu:3")
        assert snapshot(parse_wide(line)).gpus[0].free == 1

    def test_free_gpus_are_unknown_if_used_types_are_unknown(self) -> None:
        line = wide("p", "up", "1:00", "n", "mixed", "1", "all", "gpu:a100:2,gpu:v100:2", "gpu:1")
        assert [gpu.free for gpu in snapshot(parse_wide(line)).gpus] == [None, None]

    def test_noise_is_no_node(self) -> None:
        assert snapshot(parse_wide("\n  \n")).partitions == []


class TestShortFormat:
    TEXT = (
        "gpu*|up|infinite|n1|mixed|1-infinite|all|gpu:a100:4(S:0-1)|n/a\n"
        "gpu*|up|infinite|n2|idle|1-infinite|all|(null)|30:00\nx"
    )

    def test_free_gpus_are_unknown_without_the_column(self) -> None:
        cluster = snapshot(parse_short(self.TEXT))
        assert [(gpu.type, gpu.total, gpu.free) for gpu in cluster.gpus] == [("a100", 4, None)]
        assert (cluster.partitions[0].default, cluster.nodes) == (True, {"idle": 1, "mixed": 1})


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", {}),
        ("gpu:2", {"": 2}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:a100:4(S:0,1),gpu:v100:2", {"a100": 4, "v100": 2}),
        ("gpu:nvidia_a100_80gb:1,shard:8,tmpfs:100G", {"nvidia_a100_80gb": 1}),
        ("gpu:a100:2(IDX:0,3),gpu:a100:1", {"a100": 3}),
        ("gpu:a100:4,gpu:h1", {"a100": 4}),
        ("gpu:1g.10gb:2(S:0),gpu:3g.40gb:1", {"1g.10gb": 2, "3g.40gb": 1}),
        ("gpu:nvidia_a100_1g.5gb:7,gpu:4090:2", {"nvidia_a100_1g.5gb": 7, "4090": 2}),
        ("gpu:no_consume:2,gpu:a100:no_consume:4(S:0)", {"": 2, "a100": 4}),
    ],
)
@pytest.mark.fault_scenario(57)
def test_gpus_of(gres: str, expected: dict[str, int]) -> None:
    assert parse_gpus(gres) == expected


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("infinite", None),
        ("n/a", None),
        ("1:00", 1),
        ("30:00", 30),
        ("8:00:00", 480),
        ("2-00:00:00", 2880),
        ("1-12:00:00", 2160),
    ],
)
def test_minutes_of(limit: str, minutes: int | None) -> None:
    assert parse_minutes(limit) == minutes


def test_columns_are_counted_in_bytes() -> None:
    row = "".join(
        cell + " " * (width - len(cell.encode()))
        for cell, width in zip(
            ("größe", "up", "infinite", "node1", "idle", "1-infinite", "ärzte", "gpu:2", "n/a", "gpu:0"),
            _WIDTHS,
            strict=True,
        )
    )
    (line,) = parse_wide(row)
    assert (line.partition, line.state, line.groups, line.gpus) == ("größe", "idle", ("ärzte",), {"": 2})
