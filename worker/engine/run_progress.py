"""Reports the current phase of the run (training, evaluating, saving or exporting) and its remaining time.

A phase that ends within a second is not reported.
"""

import math
import time
from collections.abc import Callable

from trainyard.contract.wire.reports import Phase, Progress
from worker.reporting.reporter import Reporter

_REPORTED_AFTER = 1.0
"""Seconds of a phase until it is reported."""
_INTERVAL = 2.0
"""Seconds between two reports of a phase."""
_RECENT = 0.5
"""The weight of the newest duration."""
_FORWARD_SHARE = 1 / 3
"""The part of a training step that an evaluation of as many examples takes: it has no backward pass."""


class MeanSeconds:
    """The mean of durations; newer durations weigh more."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, seconds: float) -> None:
        self.value = seconds if self.value is None else (1 - _RECENT) * self.value + _RECENT * seconds


class RunProgress:
    """Makes the progress of each report, with the phase and the time that is left."""

    def __init__(
        self,
        reporter: Reporter,
        *,
        total_steps: int,
        epoch_of: Callable[[int], int],
        seconds_per_step: Callable[[], float | None],
        training_seconds: Callable[[], float | None],
        evaluate_every: int | None,
        evaluates: bool,
        save_every: int | None,
        held_out: int = 0,
        batch_size: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            seconds_per_step: The mean, evaluations and waits for checkpoints included.
            training_seconds: The mean of a step alone.
            held_out: Examples of an evaluation; its time is estimated from their number until the first is measured.
        """
        self._reporter = reporter
        self._total = total_steps
        self._epoch_of = epoch_of
        self._seconds_per_step = seconds_per_step
        self._training_seconds = training_seconds
        self._evaluate_every, self._evaluates = evaluate_every, evaluates
        self._save_every = save_every
        self._held_out, self._batch_size = held_out, batch_size
        self._clock = clock
        self._evaluation, self._saving = MeanSeconds(), MeanSeconds()
        self._evaluated = self._saved = 0
        self._phase: Phase = "training"
        self._step = 0
        self._done = self._all = 0
        self._since = self._reported_at = 0.0
        self._is_reported = False

    def start(self, step: int) -> None:
        """Begin after a step: evaluations and checkpoints up to it are done."""
        self._evaluated = self._saved = step

    def at(self, step: int) -> Progress:
        """Return the progress after a step."""
        progress = Progress(
            step=step,
            total_steps=self._total,
            epoch=self._epoch_of(max(0, step - 1)),
            seconds_per_step=self._seconds_per_step(),
            seconds_left=self._left(step),
            phase=self._phase,
        )
        if self._phase != "evaluating" or not self._all:
            return progress
        return progress.model_copy(update={"phase_done": self._done, "phase_total": self._all})

    def begin(self, phase: Phase, step: int, *, report: bool = False) -> None:
        """Begin a phase; with `report`, or if it usually takes long, report it at once."""
        self._phase, self._step, self._done, self._all = phase, step, 0, 0
        self._since = self._reported_at = self._clock()
        self._is_reported = False
        usual = {"evaluating": self._evaluation.value, "saving": self._saving.value}.get(phase) or 0.0
        if report or usual > _REPORTED_AFTER:
            self._report()

    def evaluated(self, done: int, total: int) -> None:
        """Note how many examples are evaluated; reported at intervals."""
        self._done, self._all = done, total
        now = self._clock()
        due = self._reported_at + (_INTERVAL if self._is_reported else _REPORTED_AFTER)
        if now >= due:
            self._report()

    def end(self) -> None:
        """End the phase: training goes on. If the phase was reported, so is its end."""
        seconds = self._clock() - self._since
        if self._phase == "evaluating":
            self._evaluation.add(seconds)
            self._evaluated = self._step
        elif self._phase == "saving":
            self._saving.add(seconds)
            self._saved = self._step
        self._phase = "training"
        if self._is_reported:
            self._report()
            self._is_reported = False

    def _report(self) -> None:
        self._is_reported, self._reported_at = True, self._clock()
        self._reporter.points(self._step, {}, self.at(self._step))

    def _left(self, step: int) -> float | None:
        training = self._training_seconds()
        if training is None or self._phase == "exporting":
            return None
        usual = self._evaluation.value
        if usual is None:
            usual = evaluation_estimate(self._held_out, self._batch_size, training)
        current = 0.0
        evaluated, saved = self._evaluated, self._saved
        elapsed = self._clock() - self._since
        if self._phase == "evaluating":
            evaluated = step
            current = elapsed * (self._all / self._done - 1) if self._done else max(0.0, usual - elapsed)
        elif self._phase == "saving":
            saved = step
            current = max(0.0, (self._saving.value or 0.0) - elapsed)
        return seconds_left(
            steps=self._total - step,
            step_seconds=training,
            evaluations=occurrences(evaluated, self._total, self._evaluate_every) if self._evaluates else 0,
            evaluation_seconds=usual,
            saves=occurrences(saved, self._total, self._save_every),
            save_seconds=self._saving.value or 0.0,
            current=current,
        )


def occurrences(after: int, total: int, every: int | None) -> int:
    """Return how often something is due after a step and up to the last: at each multiple, and at the last step."""
    if after >= total:
        return 0
    if every is None:
        return 1
    return total // every - after // every + (total % every != 0)


def evaluation_estimate(examples: int, batch_size: int, step_seconds: float) -> float:
    """Return the expected seconds of an evaluation, before any was measured."""
    return examples / max(1, batch_size) * step_seconds * _FORWARD_SHARE


def seconds_left(
    *,
    steps: int,
    step_seconds: float,
    evaluations: int,
    evaluation_seconds: float,
    saves: int,
    save_seconds: float,
    current: float = 0.0,
) -> float | None:
    """Return the seconds to the end of the last step, evaluation and checkpoint; None if they are not finite.

    Args:
        current: Seconds that the present evaluation or checkpoint will still take.
    """
    left = current + max(0, steps) * step_seconds + evaluations * evaluation_seconds + saves * save_seconds
    return left if math.isfinite(left) and left >= 0 else None
