"""The global batches: a fixed set of examples for each step, a function of (seed, epoch, step) alone."""

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_WORD = 2**32


class GlobalBatches:
    """The batches of a whole run. The number of ranks plays no part; the only state is the step."""

    def __init__(
        self,
        examples: int,
        size: int,
        *,
        seed: int,
        last: Literal["keep", "drop", "pad"] = "keep",
        shuffle: bool = True,
    ) -> None:
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
        """The examples of the update that follows `step` completed ones."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = self._order(epoch)
        batch = order[place * self.size : (place + 1) * self.size]
        if self._last == "pad" and len(batch) < self.size:
            batch = np.concatenate([batch, np.resize(order, self.size - len(batch))])
        return batch

    def _order(self, epoch: int) -> Indices:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._shuffled(epoch))
        return self._cached[1]

    def _shuffled(self, epoch: int) -> Indices:
        if not self._shuffle:
            return np.arange(self.examples, dtype=np.int64)
        # RandomState, since numpy promises never to change its stream: a resumed run may meet another numpy.
        generator = np.random.RandomState([self._seed % _WORD, self._seed // _WORD % _WORD, epoch % _WORD])
        return generator.permutation(self.examples).astype(np.int64)


def share(batch: Indices, rank: int, world: int) -> Indices:
    """A rank's contiguous part; parts differ in length by at most one, and the earlier ranks have the longer ones."""
    short, longer = divmod(len(batch), world)
    start = rank * short + min(rank, longer)
    return batch[start : start + short + (rank < longer)]


def micro_batches(batch: Indices, rank: int, world: int, micro_size: int | None) -> list[Indices]:
    """A rank's part in pieces of at most `micro_size`. Every rank gets the same number; missing ones are empty."""
    longest = -(-len(batch) // world)
    size = min(micro_size or longest, longest)
    mine = share(batch, rank, world)
    return [mine[start : start + size] for start in range(0, longest, size)]


def digest(batch: Indices) -> str:
    """A short name of a batch's examples, in order: equal where two runs saw the same ones."""
    return hashlib.sha256(np.ascontiguousarray(batch, dtype="<i8").tobytes()).hexdigest()[:16]
