"""The findings of a `comm_check` job as tables."""

from collections.abc import Mapping
from typing import Any

from trainyard.cli.output import say, size, table
from trainyard.client import Client
from trainyard.contract.wire.jobs import JobResource


def comm_check_of(client: Client, job: JobResource) -> Mapping[str, Any] | None:
    """What the job's newest execution found; None for other jobs, and before there is something."""
    if job.spec.get("task") != "comm_check":
        return None
    found = [event.data for event in client.events(job.id) if event.type == "comm_check"]
    return found[-1] if found else None


def show_comm_check(found: Mapping[str, Any]) -> None:
    """The world's operations; the artifact has the groups and all pairs."""
    rows = [row for row in found.get("operations", ()) if isinstance(row, dict)]
    table(("OPERATION", "MESSAGE", "TIME", "BUS BANDWIDTH"), [_row(row) for row in rows])
    slow = found.get("slowest_pair")
    if isinstance(slow, dict):
        say(f"slowest pair: {slow.get('group')}, {_rate(slow)} at {size(int(slow.get('size_bytes', 0)))}")
    for group, operations in found.get("not_in_backend", {}).items():
        say(f"not in backend {found.get('backend')} ({group}): {', '.join(operations)}")
    say("groups and pairs: trainyard artifacts JOB --download comm_check.json")


def _row(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    bytes_ = int(row.get("size_bytes", 0))
    seconds = float(row.get("seconds", 0))
    time = f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
    return str(row.get("operation", "")), size(bytes_) if bytes_ else "-", time, _rate(row)


def _rate(row: Mapping[str, Any]) -> str:
    rate = row.get("bus_bytes_per_second")
    return "-" if rate is None else f"{float(rate) / 1e9:.3g} GB/s"
