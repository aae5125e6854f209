"""Which rank has not entered the collective that others wait in, or is in another one: from the latest collectives of
the ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.contract.sizes import format_size
from worker.core.flight_recorder import Collective, is_of_all_ranks

_SAME_BYTES = ("all_reduce", "allreduce", "broadcast", "_all_gather_base", "_reduce_scatter_base")
"""The beginnings of the names of collectives whose inputs have the same size on all ranks. NCCL gathers and scatters
lists of tensors of different sizes, and adds tensors of different shapes with as many values."""
_MAX_SHAPES = 2
_MAX_RANKS = 4


@dataclass(frozen=True)
class Difference:
    """The ranks of a group that differ from most others."""

    ranks: tuple[int, ...]
    """The ranks that have not entered the collective, or are in another one."""
    is_order: bool
    """Whether they are in another collective than the others."""
    text: str


def find_difference(ranks: Mapping[int, Mapping[str, Sequence[Collective]]]) -> Difference | None:
    """Return the first difference of a process group, or None if there is none.

    Only ranks with collectives in a group count as its members, except in the group of all ranks.

    Args:
        ranks: The latest collectives of the ranks that have written theirs, by rank and group, oldest first.
    """
    differences = []
    for group in sorted({name for groups in ranks.values() for name in groups}):
        members = {
            rank: groups.get(group, ()) for rank, groups in ranks.items() if is_of_all_ranks(group) or groups.get(group)
        }
        if difference := _difference_of_group(members):
            differences.append(difference)
    # A rank in another collective explains why the others wait; a rank that is absent from one may wait in another.
    return min(differences, key=lambda difference: not difference.is_order, default=None)


def _difference_of_group(members: Mapping[int, Sequence[Collective]]) -> Difference | None:
    """Return the difference at the first collective that a rank has entered and not left, or at a later one."""
    pending = {rank: [one for one in latest if not one.is_complete] for rank, latest in members.items()}
    numbers = sorted({collective.number for waiting in pending.values() for collective in waiting})
    for number in numbers:
        entered = {rank: one for rank, latest in members.items() for one in latest if one.number == number}
        waiting = {rank: one for rank, one in entered.items() if not one.is_complete}
        missing = tuple(sorted(rank for rank, latest in members.items() if not latest or latest[-1].number < number))
        if missing and waiting:
            text = f"{_have(missing)} not entered {_describe(waiting[min(waiting)])}; {_waiting(waiting)} in it"
            return Difference(missing, is_order=False, text=text)
        if difference := _order(entered):
            return difference
    return None


def _order(entered: Mapping[int, Collective]) -> Difference | None:
    """Return the ranks whose collective differs from the one that most ranks are in."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for rank, collective in sorted(entered.items()):
        size = collective.bytes if collective.name.startswith(_SAME_BYTES) else 0
        kinds.setdefault((collective.name, size), []).append(rank)
    if len(kinds) < 2:
        return None
    most, *others = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks))
    different = sorted(rank for ranks in others for rank in ranks)
    one, another = _describe(entered[different[0]]), _describe(entered[most[0]])
    text = f"{_are(different)} in {one}, but {_are(most).lower()} in {another}"
    return Difference(tuple(different), is_order=True, text=text)


def _describe(collective: Collective) -> str:
    shapes = " and ".join(str(shape) for shape in collective.sizes[:_MAX_SHAPES])
    more = f" and {len(collective.sizes) - _MAX_SHAPES} more" if len(collective.sizes) > _MAX_SHAPES else ""
    size = f" ({shapes}{more}, {format_size(collective.bytes)})" if collective.sizes else ""
    return f"{collective.name} {collective.number}{size}"


def _names(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MAX_RANKS]))}{more}"


def _have(ranks: Sequence[int]) -> str:
    return f"{_names(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _are(ranks: Sequence[int]) -> str:
    return f"{_names(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _waiting(waiting: Mapping[int, Collective]) -> str:
    return "1 rank waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"
