"""Ends a run whose evaluations no longer improve."""

import math
from collections.abc import Mapping

import torch

from trainyard.contract.spec import sections
from worker.core.errors import RefusedError
from worker.engine.callbacks.base import Callback
from worker.reporting.reporter import Reporter


class EarlyStopping(Callback):
    """Compares each evaluation with the best so far. A NaN is no improvement.

    All ranks receive the same metrics and so reach the same verdict without communication.
    """

    def __init__(self, options: sections.EarlyStopping, reporter: Reporter, *, total_steps: int) -> None:
        self._options = options
        self._reporter = reporter
        self._total_steps = total_steps
        self._best = math.nan
        self._evaluations = 0
        """The number of evaluations since the best."""
        self.best_step = 0

    @property
    def reached(self) -> bool:
        """Whether the run should end."""
        return self._evaluations >= self._options.patience

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raises RefusedError: the evaluation lacks the metric."""
        metric = self._options.metric
        if metric not in metrics:
            names = ", ".join(metrics)
            raise RefusedError(f"early_stopping.metric: the evaluation has no metric `{metric}`", f"It has: {names}.")
        self._evaluations += 1
        if self._improves(metrics[metric]):
            self._best, self.best_step, self._evaluations = metrics[metric], step, 0

    def on_loop_end(self, step: int) -> None:
        if not self.reached or step >= self._total_steps:
            return
        options = self._options
        message = (
            f"stopped at step {step} of {self._total_steps}: {options.metric} has not improved in {self._evaluations} "
            f"evaluations; the best is {self._best:.6g} at step {self.best_step}"
        )
        data = {"step": step, "metric": options.metric, "best_step": self.best_step, "best_value": self._best}
        self._reporter.event("stopped_early", message, data=data)

    def state(self) -> torch.Tensor:
        """Return the state for a checkpoint: fp64, shape (3,)."""
        return torch.tensor([self._best, self.best_step, self._evaluations], dtype=torch.float64)

    def restore(self, state: torch.Tensor) -> None:
        best, step, evaluations = state.tolist()
        self._best, self.best_step, self._evaluations = best, int(step), int(evaluations)

    def _improves(self, value: float) -> bool:
        if math.isnan(value) or math.isnan(self._best):
            return not math.isnan(value)
        gain = self._best - value if self._options.mode == "min" else value - self._best
        return gain > self._options.min_delta
