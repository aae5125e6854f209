"""The global batches: a fixed set of examples for each step, from the seed, the epoch and the step alone."""

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
"""Numbers of examples, shape (n,)."""

_WORD = 2**32


class EpochOrder(Protocol):
    """The examples of each epoch, from the seed and the epoch alone."""

    examples: int
    """Examples of an epoch."""

    def of_epoch(self, epoch: int) -> Indices:
        """Return the examples of an epoch in their order: shape (examples,)."""
        ...


class WholePass:
    """Every example once in each epoch."""

    def __init__(self, examples: int, *, seed: int, shuffle: bool = True) -> None:
        self.examples = examples
        self._seed = seed
        self._shuffle = shuffle

    def of_epoch(self, epoch: int) -> Indices:
        """Return the examples of an epoch in their order: shape (examples,)."""
        if not self._shuffle:
            return np.arange(self.examples, dtype=np.int64)
        return generator(self._seed, epoch).permutation(self.examples).astype(np.int64)


class NumberedByEpoch:
    """An order in which the same example has another number in each epoch: `n` in epoch 0, then `n + examples`, and so
    on. So the augmentation of an example can depend on its number alone, and differ from epoch to epoch."""

    def __init__(self, order: EpochOrder, numbers: int | None = None) -> None:
        """`numbers`: the numbers of an epoch, if held-out examples have some of them. None: one for each example."""
        self.examples = order.examples
        self._order = order
        self._numbers = numbers or order.examples

    def of_epoch(self, epoch: int) -> Indices:
        """Return the examples of an epoch in their order: shape (examples,)."""
        return self._order.of_epoch(epoch) + epoch * self._numbers


class WeightedSources:
    """An epoch has as many draws as there are examples. Each source gets its share of the draws by weight.

    A source is passed over again and again, each time in another order, and its draws continue in the next epoch where
    they stopped. So within a pass, however many epochs it lasts, each of its examples is drawn once.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        shuffle: bool = True,
        numbered: bool = False,
    ) -> None:
        """
        Args:
            sizes: The examples of each source, which follow each other in the numbering of examples.
            numbered: The same example has another number in each pass over its source: `n` in the first, then
                `n + examples`, and so on, as `NumberedByEpoch` has it for epochs.
        """
        self._numbered = numbered
        self._sizes = list(sizes)
        self.examples = sum(sizes)
        self.draws = shares(self.examples, weights)
        """Draws of each source in an epoch."""
        self._seed = seed
        self._shuffle = shuffle

    def of_epoch(self, epoch: int) -> Indices:
        """Return the examples of an epoch in their order: shape (examples,)."""
        turns = self._turns(epoch)
        order = np.empty(self.examples, dtype=np.int64)
        first = 0
        for source, (size, count) in enumerate(zip(self._sizes, self.draws, strict=True)):
            if count:
                order[turns == source] = first + self._drawn(source, size, epoch * count, count)
            first += size
        return order

    def _turns(self, epoch: int) -> NDArray[np.int64]:
        """Return which source each draw of an epoch is from: shape (examples,)."""
        turns = np.repeat(np.arange(len(self.draws)), self.draws)
        if self._shuffle:
            return generator(self._seed, epoch).permutation(turns)
        # Evenly spread.
        places = np.concatenate([(np.arange(count) + 0.5) / count for count in self.draws])
        return turns[np.argsort(places, kind="stable")]

    def _drawn(self, source: int, size: int, start: int, count: int) -> Indices:
        """Return `count` draws from a source, after the first `start` draws."""
        passes = range(start // size, -(-(start + count) // size))
        step = self.examples if self._numbered else 0
        drawn = np.concatenate([self._pass(source, size, number) + number * step for number in passes])
        skipped = start - passes.start * size
        return drawn[skipped : skipped + count]

    def _pass(self, source: int, size: int, number: int) -> Indices:
        if not self._shuffle:
            return np.arange(size, dtype=np.int64)
        return generator(self._seed, number, source + 1).permutation(size).astype(np.int64)


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` in proportion to the weights, by the method of the largest remainder; the first of equal
    remainders counts."""
    exact = [total * Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def generator(seed: int, number: int, *more: int) -> np.random.RandomState:
    """Return the random generator for a number, such as an epoch, and for the numbers of its subdivisions."""
    # numpy guarantees that RandomState's stream never changes: a resumed run may use another numpy.
    return np.random.RandomState([seed % _WORD, seed // _WORD % _WORD, number % _WORD, *more])


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
        order: EpochOrder | None = None,
    ) -> None:
        """
        Args:
            last: What happens to an epoch's last, incomplete batch.
            order: The order of the same number of examples. None: each once in an epoch.

        Raises:
            ValueError: There is not one batch.
        """
        if examples < 1 or (last == "drop" and examples < size):
            raise ValueError(f"{examples} training examples do not make one batch of {size}")
        self.examples = examples
        self.size = size
        self._epochs = order or WholePass(examples, seed=seed, shuffle=shuffle)
        self._last = last
        self.steps_per_epoch = examples // size if last == "drop" else -(-examples // size)
        self._cached: tuple[int, Indices] | None = None

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def at(self, step: int) -> Indices:
        """Return the examples of the step that follows `step` completed steps: shape (size,), or fewer for a kept last
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
            order = self._epochs.of_epoch(epoch)
            yield order[: batches * self.size]
            if self._last == "pad" and batches * self.size > len(order):
                yield np.resize(order, batches * self.size - len(order))

    def _order(self, epoch: int) -> Indices:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._epochs.of_epoch(epoch))
        return self._cached[1]


def share(batch: Indices, rank: int, world: int) -> Indices:
    """Return a rank's contiguous share. Lengths differ by at most one; lower ranks have the longer shares."""
    short, longer = divmod(len(batch), world)
    start = rank * short + min(rank, longer)
    return batch[start : start + short + (rank < longer)]


def micro_batches(batch: Indices, rank: int, world: int, micro_size: int | None) -> list[Indices]:
    """Split a rank's share into micro-batches of at most `micro_size` examples (None: one micro-batch). Every rank gets
    the same number of micro-batches; surplus micro-batches are empty."""
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
