"""Which metrics are drawn together, under which words and in which unit. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_GIGA = 1e-9
LOSSES = ("train/loss", "eval/loss")
RANKS = "perf/rank_seconds/"
STEPLESS = ("script", "comm_check")
"""Tasks that may run from beginning to end without telling of a step."""


@dataclass(frozen=True)
class Chart:
    """One frame; a key that ends in `/` stands for all that begin so."""

    id: str
    title: str
    keys: tuple[str, ...]
    unit: str = ""
    scale: float = 1.0
    """What a value is multiplied by to be in the unit."""
    note: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        """For the page's script."""
        return asdict(self)


_LOSS = Chart("loss", "Loss", LOSSES)
_STANDARD = (
    Chart("lr", "Learning rate", ("train/lr",)),
    Chart("norm", "Gradient norm", ("train/grad_norm",)),
)
_MEMORY = Chart(
    "memory",
    "Memory",
    ("memory/device_peak_bytes", "memory/device_reserved_bytes", "memory/host_rss_bytes", "memory/host_peak_bytes"),
    "GB",
    _GIGA,
    "Maximum over ranks",
)
_TIME = Chart(
    "time",
    "Step time",
    (
        "perf/step_seconds",
        "perf/data_seconds",
        "perf/forward_backward_seconds",
        "perf/optimizer_seconds",
        "perf/checkpoint_stall_seconds",
    ),
    "s",
)
_BY_RANK = Chart("ranks", "Time per rank", (RANKS,), "s", note="Per-rank compute time, excluding waits for other ranks")


def charts_of(spec: Mapping[str, Any], keys: Collection[str]) -> list[Chart]:
    """The frames of a job's page: those that every training has, then one for each other metric that it has."""
    if spec.get("task") in STEPLESS:
        charts: list[Chart] = [_LOSS] if any(key in keys for key in LOSSES) else []
    else:
        charts = [_LOSS, *_STANDARD, _speed(spec, keys), _MEMORY, _TIME]
        if 1 < int(spec.get("gpus") or 1) <= 64:
            charts.append(_BY_RANK)
    hidden = {"perf/examples_per_second", "perf/tokens_per_second", "perf/rank_spread_seconds"} if charts else set()
    drawn_keys = tuple(key for chart in charts for key in chart.keys)
    rest = sorted(key for key in keys if key not in hidden and not key.startswith(RANKS) and key not in drawn_keys)
    return [*charts, *(Chart(f"own-{number}", key, (key,)) for number, key in enumerate(rest))]


def _speed(spec: Mapping[str, Any], keys: Collection[str]) -> Chart:
    tokens = "perf/tokens_per_second" in keys or spec.get("task") == "causal_lm"
    unit_name = "tokens" if tokens else "examples"
    return Chart("speed", "Throughput", (f"perf/{unit_name}_per_second",), f"{unit_name}/s")
