"""What a watcher knows of a run: folded from the job and its stream. Pure."""

from dataclasses import dataclass, field
from typing import Any

from trainyard.cli.output import format_duration, format_number, one_line
from trainyard.client.stream import StreamEvent
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import EventResource, JobProgress, JobResource
from trainyard.contract.wire.reports import Progress
from trainyard.contract.wire.stream_events import MetricsUpdate, StatusUpdate

SHOWN = {"train/loss": "loss", "eval/loss": "eval loss", "eval/accuracy": "accuracy"}

JOINT = "  "
"""Between two parts of a summary."""


@dataclass
class RunState:
    """The latest of everything."""

    status: str = ""
    message: str = ""
    step: int = 0
    total: int | None = None
    eta_seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: JobResource) -> "RunState":
        """Before the first event of a stream, which begins with the job's first status."""
        state = cls(metrics=dict(job.metrics))
        state._progress(job.progress)
        return state

    def fold(self, event: StreamEvent) -> str | None:
        """Take the event in; the line to show for it, if it is worth one."""
        match event.data:
            case StatusUpdate() as update:
                changed = (update.status, update.status_message) != (self.status, self.message)
                self.status, self.message = update.status, update.status_message
                self._progress(update.progress)
                # A bad end is told once, by who concludes, with its reason and its hint.
                return self.headline() if changed and update.status not in ("failed", "cancelled") else None
            case MetricsUpdate() as update:
                self.metrics |= {point.key: point.value for point in update.points}
                self._progress(update.progress)
            case CheckpointResource() as checkpoint:
                return f"checkpoint of step {checkpoint.step}"
            case EventResource(level="warning" | "error") as happened:
                return f"{happened.level}: {happened.message}"
        return None

    def headline(self) -> str:
        """`running: training on 2 processes`."""
        return one_line(f"{self.status}: {self.message}" if self.message else self.status)

    def summary(self) -> str:
        """`step 120/500  12 s left  loss 0.31  accuracy 0.9  2,900 examples/s`."""
        return JOINT.join(self.parts())

    def parts(self) -> list[str]:
        """Of the summary; what matters most comes first."""
        total = f"/{self.total}" if self.total else ""
        left = [f"ETA {format_duration(self.eta_seconds)}"] if self.eta_seconds is not None else []
        return [f"step {self.step}{total}", *left, *self.values()]

    def values(self) -> list[str]:
        """The few metrics that everyone looks at."""
        labelled = ((label, self.metrics.get(key)) for key, label in SHOWN.items())
        return [
            *(f"{label} {format_number(value)}" for label, value in labelled if value is not None),
            *self._throughput(),
        ]

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
