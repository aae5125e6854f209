"""What the pages show of a job, as plain values. Pure; templates and scripts only place them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from service.web.charts import STEPLESS
from service.web.formatting import NOTHING, count, duration, number, size
from trainyard.contract.wire.jobs import JobResource

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
    why: str
    """Instead of a bar, while there is no progress to show."""
    steps: str
    left: str
    loss: str
    gpus: int
    strategy_label: str
    owner: str
    created_at: datetime


def brief(job: JobResource) -> dict[str, Any]:
    """The job as the API tells it, without what the table does not show: a page of many jobs stays small."""
    spec = {name: job.spec.get(name) for name in ("gpus", "strategy", "precision", "lora_rank")}
    fields = job.model_dump(
        mode="json",
        include={"id", "name", "status", "status_message", "created_by", "created_at", "progress", "sweep_id"},
    )
    metrics = {LOSS: job.model_dump(mode="json", include={"metrics"})["metrics"].get(LOSS)}
    return {**fields, "spec": spec, "metrics": metrics}


def row(job: JobResource) -> Row:
    """A job in the table; `static/rows.js` fills the same places."""
    progress = job.progress
    return Row(
        id=job.id,
        name=job.name,
        status=job.status,
        tone=TONES[job.status],
        title=job.status_message,
        fraction=fraction_done(job),
        why="" if progress else job.status_message,
        steps=f"{count(progress.step)} / {count(progress.total_steps)}" if progress else "",
        left=f"{duration(progress.eta_seconds)} left" if progress and progress.eta_seconds is not None else "",
        loss=number(job.metrics[LOSS]) if job.metrics.get(LOSS) is not None else "",
        gpus=int(job.spec.get("gpus") or 1),
        strategy_label=strategy_label(job.spec),
        owner=job.created_by,
        created_at=job.created_at,
    )


def fraction_done(job: JobResource) -> float:
    """The part of its steps that it has done, 0 to 1."""
    if job.progress is None or not job.progress.total_steps:
        return 0.0
    return min(1.0, job.progress.step / job.progress.total_steps)


def strategy_label(spec: Mapping[str, Any]) -> str:
    """`fsdp · bf16 · LoRA 16`."""
    rank = spec.get("lora_rank")
    parts = [spec.get("strategy"), spec.get("precision"), f"LoRA {rank}" if rank else None]
    return " · ".join(str(part) for part in parts if part)


def spec_text(job: JobResource) -> str:
    """As YAML, ready to be submitted again."""
    text: str = yaml.safe_dump(job.spec, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    return text


@dataclass(frozen=True)
class Fact:
    """A number about a job that one looks for."""

    id: str
    word: str
    value: str


@dataclass(frozen=True)
class ErrorView:
    """What went wrong, in the places of the page."""

    where: str = ""
    what: str = ""
    hint: str = ""
    traceback: str = ""


def sentence(job: JobResource) -> str:
    """What it is doing, or why it waits; `static/facts.js` says the same."""
    text = job.status_message or job.status
    progress = job.progress
    if job.status == "running" and progress:
        text += f": step {count(progress.step)} of {count(progress.total_steps)}"
        text += f", about {duration(progress.eta_seconds)} left" if progress.eta_seconds is not None else ""
    if job.status == "running" and not progress and job.spec.get("task") not in STEPLESS:
        text += "; no steps yet"
    return f"{text[:1].upper()}{text[1:]}."


def facts(job: JobResource) -> list[Fact]:
    """In the order of the page; `static/facts.js` fills the same places."""
    progress, spec = job.progress, job.spec
    return [
        Fact("step", "Step", f"{count(progress.step)} / {count(progress.total_steps)}" if progress else NOTHING),
        Fact("left", "ETA", duration(progress.eta_seconds) if progress else NOTHING),
        Fact("ran", "Runtime", runtime(job)),
        Fact("loss", "Loss", number(job.metrics.get(LOSS))),
        Fact("checkpoint", "Checkpoint", _at_step(job.last_checkpoint_step)),
        Fact("where", "Nodes", ", ".join(job.attempt.nodes) if job.attempt and job.attempt.nodes else NOTHING),
        Fact("gpus", "GPUs", str(spec.get("gpus") or 1)),
        Fact("made", "Strategy", strategy_label(spec)),
        Fact("disk", "On disk", size(job.disk_bytes)),
    ]


def _at_step(step: int | None) -> str:
    return NOTHING if step is None else f"step {count(step)}"


def runtime(job: JobResource) -> str:
    """Of a job that is over, from its first start to its end."""
    if job.started_at is None or job.finished_at is None:
        return NOTHING
    return duration((job.finished_at - job.started_at).total_seconds())


def error_view(job: JobResource) -> ErrorView:
    """The first thing that went wrong, on the rank where it went wrong first."""
    error = job.error
    if error is None:
        return ErrorView()
    rank = "Failed" if error.rank is None else f"First failure: rank {error.rank}"
    host = f" on {error.host}" if error.host else ""
    return ErrorView(f"{rank}{host}", f"{error.type}: {error.message}", error.hint or "", error.traceback)


EMPTY_ROW = Row(
    id="", name="", status="", tone="off", title="", fraction=0.0, why="", steps="", left="", loss="", gpus=1,
    strategy_label="", owner="", created_at=datetime(2000, 1, 1, tzinfo=UTC),
)  # fmt: skip
"""What the browser makes new rows of."""
