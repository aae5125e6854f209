"""Reports losses, learning rates, norms and performance to the service and the log."""

import logging
import math
from collections.abc import Callable, Mapping

from trainyard.contract.wire.reports import Progress
from worker.core.distributed import Ranks
from worker.engine.callbacks.base import Callback, StepResult
from worker.engine.callbacks.non_finite import NonFiniteGuard
from worker.engine.callbacks.performance import PerformanceMonitor
from worker.engine.optim import LearningRates
from worker.engine.precision import Precision
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)


class MetricsLogger(Callback):
    """Logs after the steps for which `due` is true, and after every evaluation. Reading the values waits for the
    device, and global losses are a collective."""

    def __init__(
        self,
        reporter: Reporter,
        ranks: Ranks,
        *,
        due: Callable[[int], bool],
        total_steps: int,
        epoch_of: Callable[[int], int],
        tokens_before: Callable[[int], int],
        learning_rates: LearningRates,
        precision: Precision,
        guard: NonFiniteGuard,
        performance: PerformanceMonitor,
    ) -> None:
        """`tokens_before`: returns the tokens of the first steps of the run, given their number."""
        self._reporter = reporter
        self._ranks = ranks
        self._due = due
        self._total_steps = total_steps
        self._epoch_of = epoch_of
        self._tokens_before = tokens_before
        self._tokens: int | None = None
        self._learning_rates = learning_rates
        self._precision = precision
        self._guard = guard
        self._performance = performance
        self.latest: dict[str, float] = {}
        """The metrics of the current step that its checkpoint records."""

    def on_step_end(self, result: StepResult) -> None:
        self.latest = {}
        before = self._tokens_before(result.step - 1) if self._tokens is None else self._tokens
        self._tokens = before + result.tokens.tokens
        if not self._due(result.step):
            return
        step = result.step
        losses, performance = self._gather(result)
        assert result.grad_norm is not None
        metrics = {**losses, **self._learning_rates.metrics(), "train/grad_norm": float(result.grad_norm.item())}
        if self._tokens:
            metrics["train/tokens"] = float(self._tokens)
        if self._precision.scaler:
            metrics["train/loss_scale"] = self._precision.scaler.get_scale()
        if self._guard.counts_skips:
            metrics["train/skipped_steps"] = float(self._guard.skipped)
        self.latest["train/loss"] = losses["train/loss"]
        metrics |= performance
        self._reporter.points(step, metrics, self._progress(step))
        if self._ranks.is_first:
            speed = metrics["perf/examples_per_second"]
            loss = losses["train/loss"]
            log.info("step %d/%d  loss %.6f  %.0f examples/s", step, self._total_steps, loss, speed)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.latest |= metrics
        self._reporter.points(step, metrics, self._progress(step))
        if self._ranks.is_first:
            values = "  ".join(f"{key} {value:.6f}" for key, value in metrics.items())
            log.info("step %d/%d  %s", step, self._total_steps, values)

    def _gather(self, result: StepResult) -> tuple[dict[str, float], dict[str, float]]:
        """Return the losses, summed over the ranks, and the performance. One collective, which waits for the device."""
        named = {f"train/loss/{name}": loss for name, loss in result.losses.items() if name}
        parts = {"train/loss": result.loss, **named}
        own = [float(part.item()) for part in parts.values()]
        rows = self._ranks.gather([*own, *self._performance.measure()])
        columns = zip(*(row[: len(parts)] for row in rows), strict=True)
        losses = {key: math.fsum(column) for key, column in zip(parts, columns, strict=True)}
        return losses, self._performance.metrics([row[len(parts) :] for row in rows])

    def _progress(self, step: int) -> Progress:
        return Progress(
            step=step,
            total_steps=self._total_steps,
            epoch=self._epoch_of(max(0, step - 1)),
            seconds_per_step=self._performance.step_time.seconds_per_step,
        )
