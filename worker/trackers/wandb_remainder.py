"""The run files that an attempt's W&B clients write, and the lines that an earlier attempt's launcher had not read."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from trainyard.contract.layout import AttemptLayout
from worker.trackers import wandb_file
from worker.trackers.earlier_attempt import EarlierAttempt
from worker.trackers.journal import TrackedValue
from worker.trackers.steps import MetricHistory
from worker.trackers.wandb_file import Document, RunFile
from worker.trackers.wandb_history import RunHistory, StepMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NotedFile:
    """The file of a run, with the values that its points depend on."""

    path: str
    prefix: str
    resumes_at: int


@dataclass(frozen=True)
class EndedRun:
    """The data of an ended run that a client reads to continue it."""

    run_id: str
    rank: int
    fields: Document
    """The fields of the bucket, as W&B's server names them."""
    metrics: list[str]
    """The names of the metrics that the run has logged."""


class NotedFiles:
    """A list on disk of run files and ended runs, which the next attempt reads."""

    def __init__(self, layout: AttemptLayout, node: int) -> None:
        self._path = layout.run_files(node)
        self._layout = layout

    def add(self, one: NotedFile | EndedRun) -> None:
        """Append a line. If that fails, only the next attempt is affected: it lacks the unread lines, or the run."""
        try:
            with self._path.open("a") as lines:
                lines.write(json.dumps(asdict(one)) + "\n")
        except OSError as error:
            log.warning("runs of W&B cannot be noted for the next attempt: %s", error)

    def ended_run(self, run_id: str, rank: int) -> EndedRun | None:
        """Return the run of an id as the newest of the earlier attempts has left it."""
        for attempt in self._layout.earlier():
            newest: EndedRun | None = None
            for path in attempt.all_run_files():
                for text in path.read_bytes().splitlines():
                    with contextlib.suppress(ValueError, TypeError):
                        run = EndedRun(**json.loads(text))
                        newest = run if (run.run_id, run.rank) == (run_id, rank) else newest
            if newest is not None:
                return newest
        return None


@dataclass(frozen=True)
class RunFileRemainder:
    """The unread lines of the previous attempt."""

    attempt: EarlierAttempt

    @classmethod
    def find(cls, layout: AttemptLayout) -> "RunFileRemainder | None":
        """Return the unread lines; None without an earlier attempt or a checkpoint. Call before the program starts."""
        earlier = EarlierAttempt.find(layout)
        return cls(earlier) if earlier else None

    def values(self, known: Callable[[TrackedValue], MetricHistory | None]) -> Iterator[TrackedValue]:
        """Yield the values that follow the last point of their metric and precede the checkpoint."""
        return self.attempt.unread(self._values(), known)

    def _values(self) -> Iterator[TrackedValue]:
        for path in self.attempt.layout.all_run_files():
            for text in path.read_bytes().splitlines():
                with contextlib.suppress(OSError, ValueError, TypeError):
                    noted = NotedFile(**json.loads(text))
                    yield from _values_of(noted, str(self.attempt.path_now(noted.path)))


def _values_of(noted: NotedFile, path: str) -> Iterator[TrackedValue]:
    with contextlib.closing(RunFile(path, path)) as file:
        records = list(file.unread())
    definitions = [wandb_file.parse_definition(message) for kind, message, _ in records if kind == wandb_file.METRIC]
    history = RunHistory(noted.resumes_at, StepMetrics.parse(definitions))
    for kind, message, _ in records:
        if kind == wandb_file.HISTORY:
            yield from history.values(wandb_file.parse_history(message), noted.prefix)
