"""The reference model's log-probabilities: computed once, before the first step, and kept in the run folder.

The reference is the model before its first step, so that no copy of it is needed: new adapters change nothing yet.
"""

import io
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.contract.layout import write_atomic
from trainyard.progress_file import ProgressCounter
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.data.other_answers import OtherReference, Pairs
from worker.data.sampler import Indices
from worker.engine.precision import Precision
from worker.engine.strategies.base import ParallelModel
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task, answers_of

log = logging.getLogger(__name__)

Values = NDArray[np.float32]
"""Log-probabilities of sequences by their numbers, shape (sequences,): of all rows, then of the pairs of prompts and
other answers. NaN where it is not known."""

_BATCHES = 256
"""Batches of a rank after which the ranks exchange their values."""
_SECONDS_STORED = 60.0
"""Seconds after which the values are stored, so that an interrupted execution need not begin again."""


class ReferenceFile:
    """The stored log-probabilities of a run, which belong to a digest of model and data."""

    def __init__(self, path: Path | None, digest: str) -> None:
        """`path`: None for a run without a folder."""
        self._path = path
        self._digest = digest

    @property
    def name(self) -> str:
        return self._path.name if self._path else ""

    def read(self, shape: tuple[int, ...], pairs: Pairs) -> Values:
        """Return the stored values for this digest: rows of this shape (examples, rows of an example), then pairs.

        A missing value is NaN.
        """
        rows, others = np.full(shape, np.nan, dtype=np.float32), OtherReference()
        if self._path is not None:
            try:
                with np.load(io.BytesIO(self._path.read_bytes()), allow_pickle=False) as stored:
                    logps = stored["logps"]
                    if str(stored["digest"]) == self._digest and (logps.shape, logps.dtype) == (shape, np.float32):
                        rows = logps
                        # Earlier releases have no pairs.
                        others = OtherReference(stored["pairs"], stored["pair_logps"])
            except (OSError, ValueError, KeyError, EOFError, BadZipFile):
                pass
        return np.concatenate([rows.ravel(), others.or_nan(pairs)])

    def write(self, values: Values, shape: tuple[int, ...], pairs: Pairs) -> None:
        """Replace the stored values."""
        if self._path is not None:
            content, rows = io.BytesIO(), len(values) - len(pairs)
            digest, logps = np.array(self._digest), values[:rows].reshape(shape)
            np.savez(content, logps=logps, pairs=pairs, pair_logps=values[rows:], digest=digest)
            write_atomic(self._path, content.getvalue())


def fill_reference(
    task: Task,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    file: ReferenceFile,
    *,
    batches: Iterable[Indices],
    size: int,
    may_compute: bool,
    progress: ProgressCounter,
    reporter: Reporter,
) -> None:
    """Write the reference's log-probabilities into the task's examples. A collective.

    They come from the file; the current model computes missing values, which are then stored.

    Args:
        file: Used on rank 0.
        batches: The global batches in which answers are compared with others.
        size: Examples that a rank computes at once.
        may_compute: Whether the model is the reference now.

    Raises:
        RefusedError: On all ranks; not all is stored for the run, and the model is not the reference.
    """
    examples = answers_of(task)
    pairs, shape = examples.compared(batches), examples.reference.shape
    values: Values = ranks.broadcast(file.read(shape, pairs) if ranks.is_rank_0 else None)
    missing = np.flatnonzero(np.isnan(values))
    if len(missing) and not may_compute:
        raise RefusedError(
            "the log-probabilities of the reference, with which the run began, are gone or belong to other data",
            f"Restore {file.name} in the run's folder, or submit the job again.",
        )
    parts = _read_in_parts(task, model, precision, ranks, missing, pairs, size=size * shape[1], progress=progress)
    stored = time.monotonic()
    for done, numbers, logps in parts:
        values[numbers] = logps
        if ranks.is_rank_0 and (done or time.monotonic() >= stored + _SECONDS_STORED):
            file.write(values, shape, pairs)
            stored = time.monotonic()
    if len(missing):
        data = {"answers": len(missing)}
        reporter.event("reference_computed", f"the reference has read {len(missing)} answers", data=data)
    log.info("the reference's log-probabilities: mean %.4f", float(values.mean()))
    examples.set_reference(values, pairs)


def _read_in_parts(
    task: Task,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    missing: Indices,
    pairs: Pairs,
    *,
    size: int,
    progress: ProgressCounter,
) -> Iterator[tuple[bool, Indices, Values]]:
    """Yield the numbers of sequences and their log-probabilities, and first whether these are the last. `size`:
    sequences that a rank computes at once."""
    # The longest first, so that rows of about the same length are in one batch, and too little memory shows at once.
    order = missing[np.argsort(-answers_of(task).lengths(pairs)[missing], kind="stable")]
    part = size * ranks.world * _BATCHES
    model.module.eval()
    for start in range(0, len(order), part):
        some = order[start : start + part]
        logps = _compute(task, model, precision, ranks, some, pairs, size=size, progress=progress)
        yield start + part >= len(order), some, logps
    model.release()
    model.module.train()


@torch.no_grad()
def _compute(
    task: Task,
    model: ParallelModel,
    precision: Precision,
    ranks: Ranks,
    numbers: Indices,
    pairs: Pairs,
    *,
    size: int,
    progress: ProgressCounter,
) -> Values:
    """Return the log-probabilities of these sequences, shape (n,). `size`: sequences that a rank computes at once."""
    own = numbers[ranks.rank :: ranks.world]
    each = -(-len(numbers) // ranks.world)
    values = torch.zeros(each)
    for start in range(0, each, size):
        progress.mark("reference")
        part = own[start : start + size]
        # Every rank makes as many forwards, because the forward of a sharded model is a collective.
        batch = answers_of(task).sequences(part if len(part) else numbers[:1], pairs, ranks.device)
        with precision.autocast():
            logps = task.reference_logps(model.evaluation_module, batch)
        values[start : start + len(part)] = logps[: len(part)].float().cpu()
    result = np.zeros(len(numbers), dtype=np.float32)
    for rank, rows in enumerate(ranks.gather_rows(values)):
        result[rank :: ranks.world] = rows[: len(range(rank, len(numbers), ranks.world))].numpy()
    return result
