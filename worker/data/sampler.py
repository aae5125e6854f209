"""The global batches: a fixed set of examples for each step, from the seed, the epoch and the step alone."""

import hashlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
"""Numbers of examples, shape (n,)."""

_WORD = 2**32


class GlobalBatches:
    """The batches of a whole run. They do not depend on the number of ranks, and the step is the only state."""

    def __init__(
        self,
        examples: int,
        size: int,
        *,
        seed: int,
        last: Literal["keep", "drop", "pad"] = "keep",
        shuffle: bool = True,
    ) -> None:
        """`last` decides what happens to an epoch's last, incomplete batch.

        Raises:
            ValueError: There is not one batch.
        """
        if examples < 1 or (last == "drop" and examples < size):
            raise ValueError(f"{examples} training examples do not make one batch of {size}")
        self.examples = examples
        self.size = size
        self._seed = seed
        self._last = last
        self._shuffle = shuffle
        self.steps_per_epoch = examples // size if last == "drop" else -(-examples // size)
        self._cached: tuple[int, Indices] | None = None

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def at(self, step: int) -> Indices:
        """Return the examples of the step that follows `step` completed ones: shape (size,), or fewer for a kept last
        batch."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        batch = order[index * self.size : (index + 1) * self.size]
        if self._last == "pad" and len(batch) < self.size:
            batch = np.concatenate([batch, np.resize(order, self.size - len(batch))])
        return batch

    def before(self, step: int) -> Iterator[Indices]:
        """Yield all examples of the first `step` steps, in long parts."""
        for epoch in range(-(-step // self.steps_per_epoch)):
            batches = min(self.steps_per_epoch, step - epoch * self.steps_per_epoch)
            order = self._shuffled(epoch)
            yield order[: batches * self.size]
            if self._last == "pad" and batches * self.size > len(order):
                yield np.resize(order, batches * self.size - len(order))

    def _order(self, epoch: int) -> Indices:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._shuffled(epoch))
        return self._cached[1]

    def _shuffled(self, epoch: int) -> Indices:
        if not self._shuffle:
            return np.arange(self.examples, dtype=np.int64)
        # numpy guarantees that RandomState's stream never changes: a resumed run may use another numpy.
        generator = np.random.RandomState([self._seed % _WORD, self._seed // _WORD % _WORD, epoch % _WORD])
        return generator.permutation(self.examples).astype(np.int64)


def share(batch: Indices, rank: int, world: int) -> Indices:
    """Return a rank's contiguous share. Lengths differ by at most one; lower ranks have the longer shares."""
    short, longer = divmod(len(batch), world)
    start = rank * short + min(rank, longer)
    return batch[start : start + short + (rank < longer)]


def micro_batches(batch: Indices, rank: int, world: int, micro_size: int | None) -> list[Indices]:
    """Split a rank's share into micro-batches of at most `micro_size` examples (None: one micro-batch). Every rank gets
    the same number of micro-batches; surplus ones are empty."""
    size = micro_batch_length(len(batch), world, micro_size)
    mine = share(batch, rank, world)
    return [mine[start : start + size] for start in range(0, -(-len(batch) // world), size)]


def micro_batch_length(examples: int, world: int, micro_size: int | None) -> int:
    """Return the number of examples in the longest micro-batch of a batch with that many `examples`."""
    longest = -(-examples // world)
    return min(micro_size or longest, longest)


def digest(batch: Indices) -> str:
    """Return 16 hex digits that identify the examples of a batch and their order."""
    return hashlib.sha256(np.ascontiguousarray(batch, dtype="<i8").tobytes()).hexdigest()[:16]
