"""The sources of training examples that are drawn from by weight."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.contract.spec.image_data import ImageFiles
from trainyard.contract.spec.text_data import TextData, TextMixture
from worker.core.errors import RefusedError
from worker.data.notices import Notice
from worker.data.sampler import WeightedSources


@dataclass(frozen=True)
class Mixture:
    """The sources, in the order of the examples."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """The examples of each source."""
    weights: tuple[float, ...]

    def order(self, *, seed: int, shuffle: bool, numbered: bool = False) -> WeightedSources:
        """Return the order of the examples. `numbered`: see `WeightedSources`.

        Raises:
            RefusedError: The weight of a source is too small for one example in an epoch.
        """
        order = WeightedSources(self.sizes, self.weights, seed=seed, shuffle=shuffle, numbered=numbered)
        for index, draws in enumerate(order.draws):
            if not draws:
                raise RefusedError(
                    f"data.sources.{index}.weight is {self.weights[index]:g}, too little for one of the "
                    f"{order.examples} rows of an epoch",
                    "Give the source a larger weight, or remove it.",
                )
        return order

    def notice(self) -> Notice:
        """Return a notice of each source's share in an epoch. Raises the errors of `order`."""
        draws = self.order(seed=0, shuffle=True).draws
        parts = list(zip(self.names, self.sizes, draws, strict=True))
        listed = ", ".join(f"{count} of {name}, which has {rows}" for name, rows, count in parts)
        data = {name: {"rows": rows, "drawn_per_epoch": count} for name, rows, count in parts}
        return Notice("data_mixture", f"an epoch has {sum(draws)} rows: {listed}", "info", {"sources": data})


def mixture_of(data: TextData | ImageFiles, sizes: Sequence[int]) -> Mixture | None:
    """Return the mixture of a section whose sources have so many training examples; None if it has no weights."""
    if not isinstance(data, TextMixture | ImageFiles) or not data.sources:
        return None
    return Mixture(data.names, tuple(sizes), tuple(source.weight for source in data.sources))
