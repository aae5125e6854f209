"""What the pages show of a job, as plain values. Pure; templates and scripts only place them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.web.wording import count, duration, number
from trainyard.contract.resources import JobResource

LOSS = "train/loss"

TONES: Mapping[str, str] = {
    "queued": "wait",
    "submitting": "wait",
    "pending": "wait",
    "running": "run",
    "pausing": "run",
    "cancelling": "run",
    "paused": "rest",
    "lost": "bad",
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "off",
}
"""How a status looks; its word is always beside the colour."""

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Waiting", ("queued", "submitting", "pending")),
    ("Running", ("running", "pausing", "cancelling")),
    ("Paused", ("paused",)),
    ("Succeeded", ("succeeded",)),
    ("Failed", ("failed", "lost")),
    ("Cancelled", ("cancelled",)),
)
"""What the table can be narrowed to."""


@dataclass(frozen=True)
class Row:
    """A job in the table."""

    id: str
    name: str
    status: str
    tone: str
    title: str
    """The plain words about the status."""
    fraction: float
    """Of the steps, 0 to 1."""
    steps: str
    left: str
    loss: str
    gpus: int
    made_of: str
    owner: str
    created_at: datetime


def brief(job: JobResource) -> dict[str, Any]:
    """The job as the API tells it, without what the table does not show: a page of many jobs stays small."""
    spec = {name: job.spec.get(name) for name in ("gpus", "strategy", "precision", "lora_rank")}
    told = job.model_dump(
        mode="json",
        include={"id", "name", "status", "status_message", "created_by", "created_at", "progress", "sweep_id"},
    )
    metrics = {LOSS: job.model_dump(mode="json", include={"metrics"})["metrics"].get(LOSS)}
    return {**told, "spec": spec, "metrics": metrics}


def row(job: JobResource) -> Row:
    """A job in the table; `static/rows.js` fills the same places."""
    progress = job.progress
    return Row(
        id=job.id,
        name=job.name,
        status=job.status,
        tone=TONES[job.status],
        title=job.status_message,
        fraction=done(job),
        steps=f"{count(progress.step)} / {count(progress.total_steps)}" if progress else "",
        left=f"{duration(progress.eta_seconds)} left" if progress and progress.eta_seconds is not None else "",
        loss=number(job.metrics[LOSS]) if job.metrics.get(LOSS) is not None else "",
        gpus=int(job.spec.get("gpus") or 1),
        made_of=made_of(job.spec),
        owner=job.created_by,
        created_at=job.created_at,
    )


def done(job: JobResource) -> float:
    """The part of its steps that it has done, 0 to 1."""
    if job.progress is None or not job.progress.total_steps:
        return 0.0
    return min(1.0, job.progress.step / job.progress.total_steps)


def made_of(spec: Mapping[str, Any]) -> str:
    """`fsdp · bf16 · LoRA 16`."""
    rank = spec.get("lora_rank")
    parts = [spec.get("strategy"), spec.get("precision"), f"LoRA {rank}" if rank else None]
    return " · ".join(str(part) for part in parts if part)


BLANK = Row(
    id="", name="", status="", tone="off", title="", fraction=0.0, steps="", left="", loss="", gpus=1, made_of="",
    owner="", created_at=datetime(2000, 1, 1, tzinfo=UTC),
)  # fmt: skip
"""What the browser makes new rows of."""
