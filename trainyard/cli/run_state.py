"""The state of a watched run, updated from the events of its stream. Pure functions."""

from dataclasses import dataclass, field
from typing import Any

from trainyard.cli.output import format_duration, format_number, one_line
from trainyard.client.stream import StreamEvent
from trainyard.contract.loss_metric import ENGINE_LOSS, TRAIN_LOSS, choose_loss
from trainyard.contract.stored_name import SYSTEM_PREFIXES
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import EventResource, JobProgress, JobResource
from trainyard.contract.wire.reports import Progress
from trainyard.contract.wire.stream_events import MetricsUpdate, StatusUpdate

METRIC_LABELS = {ENGINE_LOSS: TRAIN_LOSS, "eval/loss": "eval loss", "eval/accuracy": "accuracy"}

_OWN_METRICS = 3
SEPARATOR = "  "
"""Separator of the parts of a summary."""


@dataclass
class RunState:
    """The latest status, progress and metrics of a run."""

    status: str = ""
    message: str = ""
    step: int = 0
    total: int | None = None
    eta_seconds: float | None = None
    phase: str | None = None
    """Activity of the run beside training, such as `evaluating 120/800`."""
    metrics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: JobResource) -> "RunState":
        """Return the state before the first event of the stream."""
        state = cls(metrics=dict(job.metrics))
        state._progress(job.progress)
        return state

    def update_from(self, event: StreamEvent) -> str | None:
        """Update the state; return the line to print for the event, or None."""
        match event.data:
            case StatusUpdate() as update:
                changed = (update.status, update.status_message) != (self.status, self.message)
                self.status, self.message = update.status, update.status_message
                self._progress(update.progress)
                # `print_outcome` prints a failed or cancelled job's status with its reason and hint.
                return self.headline() if changed and update.status not in ("failed", "cancelled") else None
            case MetricsUpdate() as update:
                self.metrics |= {point.key: point.value for point in update.points}
                self._progress(update.progress)
            case CheckpointResource() as checkpoint:
                return f"checkpoint of step {checkpoint.step}"
            case EventResource(level="warning" | "error") as event_resource:
                return f"{event_resource.level}: {event_resource.message}"
        return None

    def headline(self) -> str:
        """Return status and status message, such as `running: training on 2 processes`."""
        return one_line(f"{self.status}: {self.message}" if self.message else self.status)

    def summary(self) -> str:
        """Return a summary such as `step 120/500  ETA 12 s  train loss 0.31  accuracy 0.9  2,900 examples/s`."""
        return SEPARATOR.join(self.parts())

    def parts(self) -> list[str]:
        """Return the parts of the summary, the most important first."""
        total = f"/{self.total}" if self.total else ""
        eta = [f"ETA {format_duration(self.eta_seconds)}"] if self.eta_seconds is not None else []
        return [f"step {self.step}{total}", *([self.phase] if self.phase else []), *eta, *self.values()]

    def values(self) -> list[str]:
        """Return losses, accuracy and throughput as text."""
        labels = self._own_labels()
        if METRIC_LABELS.keys() & self.metrics.keys():
            labels = {choose_loss(self.metrics) or ENGINE_LOSS: TRAIN_LOSS, **METRIC_LABELS}
        labelled = ((label, self.metrics.get(key)) for key, label in labels.items())
        return [
            *(f"{label} {format_number(value)}" for label, value in labelled if value is not None),
            *self._throughput(),
        ]

    def _own_labels(self) -> dict[str, str]:
        """Return the labels of the first metrics of a program that has names of its own for losses."""
        loss = choose_loss(self.metrics)
        own = [key for key in self.metrics if not key.startswith((*SYSTEM_PREFIXES, "perf/"))]
        own.sort(key=lambda key: (key != loss, "loss" not in key, key))
        return {key: one_line(key) for key in own[:_OWN_METRICS]}

    def _throughput(self) -> list[str]:
        for key, value in sorted(self.metrics.items()):
            if key.startswith("perf/") and key.endswith("_per_second") and value is not None:
                unit = key.removeprefix("perf/").removesuffix("_per_second")
                return [
                    f"{value:,.0f} {one_line(unit)}/s" if value >= 100 else f"{format_number(value)} {one_line(unit)}/s"
                ]
        return []

    def _progress(self, progress: Progress | None) -> None:
        if progress is None:
            return
        self.step, self.total = progress.step, progress.total_steps or None
        self.eta_seconds = progress.eta_seconds if isinstance(progress, JobProgress) else None
        done = f" {progress.phase_done}/{progress.phase_total}" if progress.phase_total else ""
        self.phase = f"{progress.phase}{done}" if progress.phase not in (None, "training") else None
