"""A run of W&B's client. The contents of its stream and its file become points, parameters and tags, each once."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from trainyard.contract.wire.reports import EventLevel
from worker.trackers import wandb_file
from worker.trackers.curves import WANDB_SUMMARY
from worker.trackers.journal import Journal
from worker.trackers.wandb_file import Document, RunFile
from worker.trackers.wandb_history import RunHistory, StepMetrics
from worker.trackers.wandb_lines import MAX_LINES, RunLines
from worker.trackers.wandb_media import Logged

TRACKER = "wandb"
_BATCH = 1000
"""Lines of a file that are stored at once."""


class WandbRun:
    """A run of one rank in one execution."""

    def __init__(
        self,
        journal: Journal,
        execution: int,
        prefix: str,
        *,
        name: str,
        project: str,
        resumes_at: int,
        report_media: Callable[[Iterable[Logged]], None],
        earlier: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            prefix: The prefix of the names of metrics, parameters and tags.
            resumes_at: The step at which the job continues after its checkpoint.
            earlier: The names of metrics that the run has logged in earlier executions, which the client continues.
            report_media: Appends the media of a line to the journal.
        """
        self.name = name
        self.project = project
        self.prefix = prefix
        self.execution = execution
        self.resumes_at = resumes_at
        self.lines = RunLines()
        self.completed = False
        """Whether the client has sent the end of the run."""
        self.summary: Document = {}
        self.created = datetime.now(UTC)
        self._alerts: dict[str, float] = {}
        """The time by this process's clock until which an alert with this title is not repeated."""
        self._journal = journal
        self._report_media = report_media
        self._history = RunHistory(resumes_at, earlier=earlier)
        self._streamed_metrics = StepMetrics()
        self._definitions: list[Mapping[str, str]] = []
        self._file_summary: Document = {}
        self._file_config: Document = {}
        self._described: dict[str, Document] = {}
        self._ended = False
        self._summarized: Document = {}
        """The values of the summary at the last end of the run."""

    @property
    def reads_file(self) -> bool:
        """Whether the newest file of the run may have unread records."""
        return bool(self.lines.files) and not self.lines.files[-1].ended

    @property
    def whole_summary(self) -> Document:
        """The values of `run.summary` that either source has."""
        return {**self._file_summary, **self.summary}

    @property
    def metrics(self) -> frozenset[str]:
        """The names of all metrics that the run has logged, in earlier executions too."""
        return self._history.names

    def begin_again(self) -> int:
        """Expect more lines of a run that the client continues; return the step at which it continues, 0 without lines.

        Raises:
            OSError: The rest of the client's earlier lines could not be stored.
        """
        self.read_file()
        self.completed = self._ended = False
        return self._history.next_step

    def attach(self, file: RunFile) -> None:
        """Read a file of the run from now on."""
        self.lines.attach(file)
        self.completed = self._ended = False
        self._definitions.clear()

    def stream(self, first: int, lines: list[Document]) -> None:
        """Store the lines of a request.

        Args:
            first: The position of the first line in the client's history.
        """
        new = self.lines.new(lines, first)
        is_late = self.lines.are_late(new)
        self._log(new.values())
        self.lines.add(new)
        if is_late:
            self._write_again(self._history.on_axes)

    def define(self, metrics: StepMetrics) -> None:
        """Take the definitions that the client has sent. It repeats earlier definitions, and removes none."""
        self._streamed_metrics |= metrics
        self._update_metrics()

    def describe(self, parameters: Document, tags: Document, notes: Document) -> None:
        """Append the new values: the client repeats the whole configuration with each change."""
        parameters = self._unknown("parameters", parameters)
        tags, text = self._unknown("tags", tags), self._unknown("notes", notes).get("notes")
        if parameters or tags or text:
            self._journal.describe(self.execution, prefix=self.prefix, parameters=parameters, tags=tags, notes=text)
        for kind, values in {"parameters": parameters, "tags": tags, "notes": notes}.items():
            self._described.setdefault(kind, {}).update(values)

    def described(self, kind: Literal["parameters", "tags", "notes"]) -> Document:
        """Return the parameters, tags or notes that the client has sent."""
        return self._described.get(kind, {})

    def alert(self, level: EventLevel, title: str, text: str, pause: float) -> None:
        """Add an alert to the job's events, unless the pause after the last alert with this title goes on.

        Args:
            pause: Seconds until the next alert with this title.
        """
        now = time.monotonic()
        if self._alerts.get(title, 0.0) <= now:
            self._alerts[title] = now + pause
            self._journal.alert(self.execution, level, title, text)

    def read_file(self) -> None:
        """Store the data of the file that the stream did not have.

        Raises:
            OSError: The data could not be stored; the next call repeats it.
        """
        for file in self.lines.files:
            if not file.ended:
                self._read(file)

    def end(self) -> bool:
        """Store the summary once, when the run is complete or its program has ended; return whether that was now."""
        if self._ended:
            return False
        values = list(self._history.summary_values(self.whole_summary, self.prefix))
        new = [value for value in values if self._summarized.get(value.name, ...) != value.value]
        self._journal.log(self.execution, WANDB_SUMMARY, new)
        self._summarized = {value.name: value.value for value in values}
        self._ended = True
        return True

    def close(self) -> None:
        for file in self.lines.files:
            file.close()

    def _read(self, file: RunFile) -> None:
        lines: list[Document] = []
        end, ended = 0, False
        configured = False
        for kind, message, end in file.unread():
            ended = ended or kind == wandb_file.EXIT
            if kind == wandb_file.HISTORY:
                lines.append(wandb_file.parse_history(message))
            elif kind == wandb_file.METRIC:
                self._definitions.append(wandb_file.parse_definition(message))
            elif kind == wandb_file.SUMMARY:
                wandb_file.update_values(self._file_summary, message)
            else:
                own = wandb_file.config_of_run(message) if kind == wandb_file.RUN else message
                wandb_file.update_values(self._file_config, own)
                configured = True
            if len(lines) >= _BATCH:
                self._store_from_file(file, lines, end)
                lines = []
        self._update_metrics()
        if configured:
            self.describe({name: value for name, value in self._file_config.items() if name != "_wandb"}, {}, {})
        self._store_from_file(file, lines, end, ended=ended)

    def _store_from_file(self, file: RunFile, lines: list[Document], end: int, *, ended: bool = False) -> None:
        new = self.lines.new(lines)
        is_late = self.lines.are_late(new)
        self._log(new.values())
        self.lines.add_from_file(lines, new)
        file.accept(end, ended=ended)
        if is_late:
            self._write_again(self._history.on_axes)

    def _log(self, lines: Iterable[Document]) -> None:
        lines = list(lines)
        values = [value for line in lines for value in self._history.values(line, self.prefix)]
        if values:
            self._journal.log(self.execution, TRACKER, values)
        for line in lines:
            objects = [
                (self._journal.media_key(self.prefix, name), step, value, logged_at)
                for name, step, value, logged_at in self._history.objects(line)
            ]
            if objects:
                self._report_media(objects)

    def _update_metrics(self) -> None:
        """Apply the definitions of both sources: curves whose step metric has changed are written again."""
        self._history.metrics = StepMetrics.parse(self._definitions).with_preview(self._streamed_metrics)
        changed = self._history.changed()
        if changed and not self._write_again(changed):
            message = (
                f"a step metric was defined after more than {MAX_LINES} lines of W&B's history; "
                "the earlier points keep their steps: define it before the first call of `log`"
            )
            self._journal.state_once(self.execution, "wandb_late_definition", message)
            self._history.forget(changed)

    def _write_again(self, metrics: Iterable[str]) -> bool:
        """Write the curves of metrics again, in the order of the client; return False if not all lines are known."""
        lines = self.lines.all_stored()
        if lines is None:
            return False
        values = [value for line in lines for value in self._history.values(line, self.prefix)]
        names = {self.prefix + name for name in metrics}
        self._journal.rewrite(self.execution, TRACKER, (value for value in values if value.name in names))
        return True

    def _unknown(self, kind: str, values: Document) -> dict[str, Any]:
        known = self._described.get(kind, {})
        return {name: value for name, value in values.items() if name not in known or known[name] != value}
