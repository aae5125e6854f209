"""A checkpoint manager that writes nothing, for measurements and tests of the rest of a training."""

from collections.abc import Mapping, Sequence

from worker.checkpoint.manager import CheckpointManager
from worker.checkpoint.storage import StateDict
from worker.reporting.reporter import Reporter


class NoCheckpoints(CheckpointManager):
    """A run from the start without a folder."""

    def __init__(self) -> None:
        self.start_step = self.last_step = self.saved_ranks = 0
        self.weights_only = self.is_fork = False
        self.memory_files = []

    @property
    def initial_weights(self) -> str:
        return ""

    def bind(self, reporter: Reporter) -> None:
        """Nothing is reported."""

    def bind_sources(self, sources: Mapping[str, str], classes: Sequence[str] = ()) -> None:
        """Nothing is recorded."""

    def due(self, step: int, total_steps: int) -> bool:
        return False

    def save(self, step: int, state: StateDict, metrics: Mapping[str, float]) -> None:
        """Nothing is written."""

    def wait_staged(self) -> None:
        """Nothing is copied."""

    def finish(self) -> None:
        """Nothing is written."""
