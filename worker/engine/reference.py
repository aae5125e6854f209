"""The reference model's log-probabilities: computed once, before the first step, and kept in the run folder.

The reference is the model before its first step, so that no copy of it is needed: new adapters change nothing yet.
"""

import io
import logging
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.layout import write_atomic
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.data.sampler import Indices
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.reporting.reporter import Reporter
from worker.tasks.base import ReferencedTask

log = logging.getLogger(__name__)

Values = NDArray[np.float32]
"""Log-probabilities of both answers of each example, shape (examples, 2)."""


class ReferenceFile:
    """The stored log-probabilities of a run, which belong to a digest of model and data."""

    def __init__(self, path: Path | None, digest: str) -> None:
        """`path`: None for a run without a folder."""
        self._path = path
        self._digest = digest

    @property
    def name(self) -> str:
        return self._path.name if self._path else ""

    def read(self, examples: int) -> Values | None:
        """Return what is stored for this digest, or None."""
        if self._path is None:
            return None
        try:
            with np.load(io.BytesIO(self._path.read_bytes()), allow_pickle=False) as stored:
                values, digest = stored["logps"], str(stored["digest"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None
        fits = digest == self._digest and values.shape == (examples, 2) and values.dtype == np.float32
        return values if fits else None

    def write(self, values: Values) -> None:
        """Replace the stored values."""
        if self._path is not None:
            content = io.BytesIO()
            np.savez(content, logps=values, digest=np.array(self._digest))
            write_atomic(self._path, content.getvalue())


def fill_reference(
    task: ReferencedTask,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    file: ReferenceFile,
    *,
    size: int,
    may_compute: bool,
    progress: ProgressCounter,
    reporter: Reporter,
) -> None:
    """Write the reference's log-probabilities into the task's examples: those of the file, or else of the model as it
    is now, which are then stored. A collective.

    Args:
        file: Used on rank 0.
        size: Examples that a rank computes at once.
        may_compute: Whether the model is the reference now.

    Raises:
        RefusedError: On all ranks; nothing is stored for the run, and the model is not the reference.
    """
    examples = task.answers
    stored = ranks.broadcast(file.read(len(examples.reference)) if ranks.is_first else None)
    if stored is None and not may_compute:
        raise RefusedError(
            "the log-probabilities of the reference, with which the run began, are gone or belong to other data",
            f"Restore {file.name} in the run's folder, or submit the job again.",
        )
    if stored is None:
        stored = _compute(task, model, precision, ranks, size=size, progress=progress)
        if ranks.is_first:
            file.write(stored)
        message = f"the reference's log-probabilities of {2 * len(stored)} answers are computed"
        reporter.event("reference_computed", message, data={"answers": 2 * len(stored)})
    log.info("the reference's log-probabilities: mean %.4f", float(stored.mean()))
    examples.reference[:] = stored


@torch.no_grad()
def _compute(
    task: ReferencedTask,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    *,
    size: int,
    progress: ProgressCounter,
) -> Values:
    examples = task.answers
    # The longest first, so that rows of about the same length are in one batch, and too little memory shows at once.
    order: Indices = np.argsort(-examples.longest, kind="stable").astype(np.int64)
    own = order[ranks.rank :: ranks.world]
    each = -(-len(order) // ranks.world)
    values = torch.zeros(each, 2)
    model.module.eval()
    for start in range(0, each, size):
        progress.mark("reference")
        part = own[start : start + size]
        # Every rank makes as many forwards, because the forward of a sharded model is a collective.
        batch = examples.train_batch(part if len(part) else order[:1], ranks.device)
        with precision.autocast():
            logps = task.reference_logps(model.evaluation_module, batch)
        values[start : start + len(part)] = logps[: len(part)].float().cpu()
    model.release()
    model.module.train()
    result = np.zeros((len(order), 2), dtype=np.float32)
    for rank, rows in enumerate(ranks.gather_rows(values)):
        positions = order[rank :: ranks.world]
        result[positions] = rows[: len(positions)].numpy()
    return result
