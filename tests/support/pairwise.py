"""Pairwise testing: few combinations of choices in which any two choices occur together."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Pair = frozenset[tuple[str, object]]
Case = Mapping[str, object]


def pairs_of(case: Case) -> set[Pair]:
    """Return all pairs of a case's choices."""
    return {frozenset(two) for two in combinations(case.items(), 2)}


def possible_cases(choices: Mapping[str, Sequence[object]], allowed: Callable[[Case], bool]) -> list[dict[str, object]]:
    """Return the Cartesian product of the choices without the invalid cases."""
    every = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
    return [case for case in every if allowed(case)]


def pairwise(
    cases: Sequence[dict[str, object]], cheap: Callable[[Case, list[dict[str, object]]], bool]
) -> list[dict[str, object]]:
    """Return cases that together contain every pair of choices.

    Deterministic and greedy: the next case has the most missing pairs; among equal ones, a cheap one is preferred.

    Args:
        cheap: Whether a case is cheap to run beside those that are selected already.
    """
    bit_of: dict[Pair, int] = {}
    masks = [sum(1 << bit_of.setdefault(pair, len(bit_of)) for pair in pairs_of(case)) for case in cases]
    missing = (1 << len(bit_of)) - 1
    selected: list[dict[str, object]] = []
    while missing:
        gains = [(mask & missing).bit_count() for mask in masks]
        most = max(gains)
        best = [index for index, gain in enumerate(gains) if gain == most]
        index = next((index for index in best if cheap(cases[index], selected)), best[0])
        selected.append(cases[index])
        missing &= ~masks[index]
    return selected
