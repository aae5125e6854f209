"""The output of `sweep` and `sweeps`: the ranking of a sweep, its progress and its winner."""

import time
from typing import Any

from trainyard.cli.errors import CANCELLED, FAILED, INTERRUPTED
from trainyard.cli.output import (
    StatusText,
    format_age,
    format_number,
    format_value,
    print_error,
    print_json,
    print_line,
    print_table,
    short_ids,
)
from trainyard.client import Client
from trainyard.contract.loss_metric import TRAIN_LOSS, shown_name
from trainyard.contract.wire.jobs import TERMINAL
from trainyard.contract.wire.sweeps import SweepDetail, SweepMember, format_values

_POLL_SECONDS = 2.0
_UNRANKED = 10**6


def has_ended(detail: SweepDetail) -> bool:
    """Whether all members have ended and no more will be proposed."""
    return detail.state != "running" and set(detail.counts) <= TERMINAL


def ranked(detail: SweepDetail) -> list[SweepMember]:
    """Return the members, best first; members without a rank are last."""
    return sorted(detail.members, key=lambda member: (member.rank or _UNRANKED, member.number))


def shown_state(member: SweepMember) -> str:
    """Return the status of a member as its sweep sees it."""
    return "stopped early" if member.state == "stopped_early" else member.status or member.state


def format_importance(detail: SweepDetail) -> str:
    """Return each field's share, the largest first."""
    shares = sorted(detail.importance.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{path} {share:.0%}" for path, share in shares)


def show(detail: SweepDetail) -> None:
    print_line(f"sweep       {detail.id} ({detail.name})")
    print_line(f"created     {format_age(detail.created_at)} by {detail.created_by}")
    parallel = f", {detail.max_parallel} at once" if detail.max_parallel else ""
    print_line(f"jobs        {format_counts(detail.counts)}{parallel}")
    if detail.message:
        print_line(f"search      {detail.algorithm}: {detail.message}")
    if detail.importance:
        print_line(f"importance  {format_importance(detail)}")
    rows: list[tuple[str, ...]] = []
    short = short_ids([member.job_id for member in detail.members if member.job_id])
    for member in ranked(detail):
        step = member.progress.step_text() if member.progress else "-"
        values = [format_value(member.values.get(field, "-")) for field in detail.fields]
        rank, value = str(member.rank or "-"), format_number(member.value)
        rows.append((rank, short.get(member.job_id, "-"), *values, StatusText(shown_state(member)), step, value))
    print_table(("RANK", "JOB", *detail.fields, "STATUS", "STEP", _heading(detail)), rows)


def follow_sweep(client: Client, detail: SweepDetail, *, as_json: bool) -> int:
    """Print each change until all members have ended; return the exit code of the worst outcome."""
    previous = ""
    try:
        while True:
            tally = _describe(detail)
            if tally != previous and not as_json:
                print_line(tally)
            previous = tally
            if has_ended(detail):
                break
            time.sleep(_POLL_SECONDS)
            detail = client.sweep(detail.id)
    except KeyboardInterrupt:
        print_error(f"stopped watching; the jobs continue. To cancel them: trainyard sweep-cancel {detail.id}")
        return INTERRUPTED
    if as_json:
        print_json(detail)
    else:
        show(detail)
        _print_winner(detail)
    return FAILED if detail.counts.get("failed") else CANCELLED if detail.counts.get("cancelled") else 0


def format_counts(counts: Any) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none left"


def _metric(detail: SweepDetail) -> str:
    """Return the name of the metric that the members are ranked by, as the table of jobs has it."""
    return shown_name(detail.metric, (member.loss_metric for member in detail.members))


def _heading(detail: SweepDetail) -> str:
    name = _metric(detail)
    return TRAIN_LOSS.upper() if name == TRAIN_LOSS else name or "VALUE"


def _describe(detail: SweepDetail) -> str:
    """Return the counts, and the best member so far."""
    counts = format_counts(detail.counts) if detail.counts else "starting"
    best = next((member for member in detail.members if member.rank == 1), None)
    if best is None:
        return counts
    return f"{counts}; best so far: {_metric(detail)} {format_number(best.value)} with {format_values(best.values)}"


def _print_winner(detail: SweepDetail) -> None:
    best = next((member for member in detail.members if member.rank == 1), None)
    if best is not None:
        result = f"{_metric(detail)} {format_number(best.value)} with {format_values(best.values)}"
        print_line(f"best: {best.job_id}: {result}; see it with: trainyard show {best.job_id}")
