"""Reports losses, learning rates, norms and performance to the service and the log."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from trainyard.contract.wire.reports import Progress
from worker.engine.callbacks.base import Callback, StepResult
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.callbacks.performance import PerformanceMonitor
from worker.engine.optim import LearningRates
from worker.engine.precision import Precision
from worker.engine.step_sync import Rows, StepSync
from worker.reporting.reporter import Reporter
from worker.tasks.causal_lm import ACCURACY

log = logging.getLogger(__name__)

_STORED = ("train/loss", f"train/{ACCURACY}")
"""Metrics of training that a checkpoint records."""


class MetricsLogger(Callback):
    """Logs the steps for which `due` is true, once the ranks have exchanged their values, and every evaluation. Reading
    the values waits for the device."""

    def __init__(
        self,
        reporter: Reporter,
        step_sync: StepSync,
        *,
        is_rank_0: bool,
        due: Callable[[int], bool],
        total_steps: int,
        progress_of: Callable[[int], Progress],
        tokens_before: Callable[[int], int],
        learning_rates: LearningRates,
        precision: Precision,
        guard: NonFiniteGuard,
        performance: PerformanceMonitor,
        complete: Callable[[Mapping[str, float]], Mapping[str, float]] = dict,
    ) -> None:
        """`tokens_before`: returns the tokens of the first steps of the run, given their number. `complete`: adds
        metrics that follow from others of the task."""
        self._reporter = reporter
        self._step_sync = step_sync
        self._is_rank_0 = is_rank_0
        self._due = due
        self._total_steps = total_steps
        self._progress = progress_of
        self._tokens_before = tokens_before
        self._tokens: int | None = None
        self._learning_rates = learning_rates
        self._precision = precision
        self._guard = guard
        self._performance = performance
        self._complete = complete
        self._step = 0
        self.latest: dict[str, float] = {}
        """The metrics of the current step that its checkpoint records."""

    def on_step_end(self, result: StepResult) -> None:
        self._step, self.latest = result.step, {}
        before = self._tokens_before(result.step - 1) if self._tokens is None else self._tokens
        self._tokens = before + result.tokens.tokens
        if not self._due(result.step):
            return
        assert result.grad_norm is not None
        metrics = {**self._learning_rates.metrics(), "train/grad_norm": float(result.grad_norm.item())}
        if self._tokens:
            metrics["train/tokens"] = float(self._tokens)
        if self._precision.scaler:
            metrics["train/loss_scale"] = self._precision.scaler.get_scale()
        if self._guard.counts_skips:
            metrics["train/skipped_steps"] = float(self._guard.skipped)
        losses = {"train/loss": result.loss}
        losses |= {f"train/loss/{name}": loss for name, loss in result.losses.items() if name}
        losses |= {f"train/{name}": value for name, value in result.measured.items()}
        own = [float(loss.item()) for loss in losses.values()]
        report = partial(self._report, result.step, list(losses), metrics)
        self._step_sync.queue_gather([*own, *self._performance.measure()], report)

    def _report(self, step: int, names: Sequence[str], metrics: Mapping[str, float], rows: Rows) -> None:
        """Report a step from all ranks' values: first their parts of the named losses, then of the performance."""
        columns = zip(*(row[: len(names)] for row in rows), strict=True)
        losses = {name: math.fsum(column) for name, column in zip(names, columns, strict=True)}
        performance = self._performance.metrics([row[len(names) :] for row in rows])
        if step == self._step:
            self.latest |= {name: losses[name] for name in _STORED if name in losses}
        self._reporter.points(step, {**self._complete(losses), **metrics, **performance}, self._progress(step))
        if self._is_rank_0:
            loss, speed = losses["train/loss"], performance["perf/examples_per_second"]
            log.info("step %d/%d  loss %.6f  %.0f examples/s", step, self._total_steps, loss, speed)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.latest |= metrics
        self._reporter.points(step, metrics, self._progress(step))
        if self._is_rank_0:
            values = "  ".join(f"{key} {value:.6f}" for key, value in metrics.items())
            log.info("step %d/%d  %s", step, self._total_steps, values)
