"""Runs Python's garbage collector between steps instead of within them."""

import gc

from worker.engine.callbacks.base import Callback, StepResult

COLLECT_EVERY_STEPS = 50


class GarbageCollector(Callback):
    """Collects after the same steps on every rank. The automatic collector would stop the ranks at different times,
    and all ranks would wait each time."""

    def __init__(self) -> None:
        self._started = False
        self._froze = False

    def on_step_end(self, result: StepResult) -> None:
        self.collect_if_due(result.step)

    def collect_if_due(self, step: int) -> None:
        """Collect after the first step of this execution and after every 50th."""
        if not self._started:
            self._started = True
            gc.collect()
            # Objects that exist by now, such as modules and optimizers, live as long as the run: never scan them again.
            # A process that has frozen its objects by itself would lose that at the end of the run.
            self._froze = gc.get_freeze_count() == 0
            if self._froze:
                gc.freeze()
            gc.disable()
        elif step % COLLECT_EVERY_STEPS == 0:
            gc.collect()

    def on_loop_end(self, step: int) -> None:
        """Restore the automatic collector."""
        if self._started:
            gc.enable()
        if self._froze:
            gc.unfreeze()
