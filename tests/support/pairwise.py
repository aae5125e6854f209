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
    """Some of the cases, in which every pair is that is in any: each time one with the most pairs that are missing,
    and among those a cheap one beside what is chosen already. The same ones in the same order every time."""
    places: dict[Pair, int] = {}
    masks = [sum(1 << places.setdefault(pair, len(places)) for pair in pairs_of(case)) for case in cases]
    missing = (1 << len(places)) - 1
    chosen: list[dict[str, object]] = []
    while missing:
        gains = [(mask & missing).bit_count() for mask in masks]
        most = max(gains)
        best = [index for index, gain in enumerate(gains) if gain == most]
        index = next((index for index in best if cheap(cases[index], chosen)), best[0])
        chosen.append(cases[index])
        missing &= ~masks[index]
    return chosen
