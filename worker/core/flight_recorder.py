"""torch's flight recorder: the latest collectives of a rank, which show where the ranks of a stalled run differ.

torch itself writes them when a collective fails or times out. The launcher suspects and ends a stalled run earlier.
"""

import contextlib
import logging
import math
import pickle
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Seconds between two checks for the launcher's files."""
_LATEST = 64
"""Collectives of each group that are written for a suspicion."""


class Collective(BaseModel):
    """A collective that a rank has entered."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: int
    """Counts the collectives of the group, from 1."""
    name: str
    """`all_reduce`, ..."""
    sizes: list[list[int]]
    """The shapes of its inputs."""
    bytes: int
    """The size of its inputs."""
    is_complete: bool
    """Whether the rank has left it."""


class RankCollectives(BaseModel):
    """`collectives/rank-<r>.json`: the latest collectives of a rank by its process group, oldest first."""

    request: int
    """The number of the suspicion."""
    groups: dict[str, list[Collective]]


def write_on_request(
    layout: AttemptLayout, rank: int, *, with_stacks: bool, poll_seconds: float = POLL_SECONDS
) -> threading.Thread:
    """Start a thread that writes the rank's latest collectives for each suspicion of the launcher.

    Args:
        with_stacks: Whether to write everything that torch remembers as soon as the launcher has announced a stall.
    """
    path = RunLayout(layout.root.parent.parent).flight_records(layout.root.name) / f"rank_{rank}"

    def wait_and_write() -> None:
        written = 0
        while not layout.stalled.exists():
            with contextlib.suppress(OSError, ValueError):
                request = int(layout.stall_request.read_text())
                if request != written:
                    written = request
                    write_latest(layout.collectives(rank), request)
            time.sleep(poll_seconds)
        if with_stacks:
            write_record(path)

    thread = threading.Thread(target=wait_and_write, name="flight-recorder", daemon=True)
    thread.start()
    return thread


def write_latest(path: Path, request: int) -> None:
    """Write the latest collectives of this process; none if torch records them in a form that is not known.

    Without stacks it takes less than a millisecond; torch needs seconds to describe stacks.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        # Pickles of this process itself.
        records = [pickle.loads(dump) for dump in _dumps(with_stacks=False)]  # noqa: S301
        groups = {name: latest for record in records for name, latest in parse_record(record).items()}
    except Exception as error:
        # The form is torch's own, and a rank that writes no file counts as one whose interpreter is locked.
        log.warning("the latest collectives cannot be read: %r", error)
        groups = {}
    write_atomic(path, RankCollectives(request=request, groups=groups).model_dump_json())


def parse_record(record: Any) -> dict[str, list[Collective]]:
    """Return the latest collectives by their group from what torch has recorded of one backend, or of several.

    Raises:
        Exception: The record has another form.
    """
    groups: dict[str, list[Collective]] = {}
    config = record.get("pg_config", {})
    for entry in record.get("entries", ()):
        if not entry["is_p2p"]:
            name, backend = entry["process_group"][0], entry["profiling_name"].partition(":")[0]
            group = _group(backend, name, config.get(name, {}).get("ranks", ""))
            groups.setdefault(group, []).append(_collective(entry))
    return {name: collectives[-_LATEST:] for name, collectives in groups.items()}


def read_latest(layout: AttemptLayout, request: int) -> dict[int, dict[str, list[Collective]]]:
    """Return the latest collectives of the ranks that have written them for a suspicion, by rank and group."""
    ranks = {}
    for path in layout.collectives(0).parent.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValidationError):
            written = RankCollectives.model_validate_json(path.read_bytes())
            if written.request == request:
                ranks[int(path.stem.removeprefix("rank-"))] = written.groups
    return ranks


def write_record(path: Path) -> None:
    """Write the collectives that this process remembers, as `torchfrtrace` reads them.

    If NCCL and another backend have recorded some, a second file has `gloo_` before its name.
    """
    dumps = _dumps(with_stacks=True)
    used = [dump for dump in dumps if _has_entries(dump)] or dumps[:1]
    try:
        for prefix, dump in zip(("", "gloo_"), used, strict=False):
            write_atomic(path.with_name(prefix + path.name), dump)
    except OSError as error:
        log.warning("the flight record cannot be written: %s", error)


def _dumps(*, with_stacks: bool) -> list[bytes]:
    """Return what torch has recorded: of NCCL's collectives if it is built with NCCL, then of other backends."""
    from torch._C import _distributed_c10d

    source: Any = _distributed_c10d
    dumps = (getattr(source, "_dump_nccl_trace", None), source._dump_fr_trace)
    return [dump(True, with_stacks) for dump in dumps if dump]


def _has_entries(dump: bytes) -> bool:
    record = pickle.loads(dump)  # noqa: S301
    return isinstance(record, dict) and bool(record.get("entries"))


def is_of_all_ranks(group: str) -> bool:
    """Return whether a name of `RankCollectives.groups` is the group of all ranks, with any backend."""
    return group.partition(":")[2] == "0"


def _group(backend: str, name: str, ranks: str) -> str:
    """Return the name of a group with its backend, which counts its own collectives, and with its ranks where torch
    records them: groups that are made by one split of another group have one name, and no rank in common."""
    group = f"{backend}:{name}"
    return group if is_of_all_ranks(group) or not ranks.strip("[]") else f"{group} {ranks}"


def _collective(entry: dict[str, Any]) -> Collective:
    sizes = [list(shape) for shape in entry["input_sizes"]]
    return Collective(
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].rpartition(":")[2],
        sizes=sizes,
        bytes=sum(math.prod(shape) * _width(dtype) for shape, dtype in zip(sizes, entry["input_dtypes"], strict=False)),
        is_complete=entry["retired"] or entry["state"] == "completed",
    )


def _width(dtype: str) -> int:
    """Return the bytes of a value, of a type as torch's C++ code names it."""
    import torch

    value = {"Byte": torch.uint8, "Char": torch.int8}.get(dtype) or getattr(torch, dtype.lower(), None)
    return value.itemsize if isinstance(value, torch.dtype) else 1
