"""Counts progress for the watchdog."""

from trainyard.progress_file import ProgressCounter
from worker.engine.callbacks.base import Callback, StepResult


class ProgressMarker(Callback):
    """Marks steps and checkpoints in the progress counter; the step itself marks forward, backward and update."""

    def __init__(self, counter: ProgressCounter) -> None:
        self._counter = counter

    def on_step_start(self, step: int) -> None:
        self._counter.mark("between", step)

    def on_step_end(self, result: StepResult) -> None:
        self._counter.underway = True

    def on_checkpoint_start(self, step: int) -> None:
        self._counter.mark("saving")

    def on_loop_end(self, step: int) -> None:
        """Set the phase for the wait for the last checkpoint."""
        self._counter.mark("saving")
