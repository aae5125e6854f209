"""Python's garbage collector, out of the way of the steps."""

import gc

EVERY_STEPS = 50


class GarbageCollector:
    """From the first update on collections happen at chosen steps: by itself the collector would stop one rank here and
    another there, and every time all would wait."""

    def __init__(self) -> None:
        self._started = False

    def after_step(self, step: int) -> None:
        """Between steps; on every rank at the same ones."""
        if not self._started:
            self._started = True
            gc.collect()
            # What is there now, modules and optimizer included, lives as long as the run and need not be looked at.
            gc.freeze()
            gc.disable()
        elif step % EVERY_STEPS == 0:
            gc.collect()

    def close(self) -> None:
        """As it was before."""
        if self._started:
            gc.enable()
            gc.unfreeze()
