"""Whether the values are right: every operation in every group, and messages between every pair."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from worker.comm_check.operations import Place, buffers, call, expected, outcome, values
from worker.comm_check.plan import OPERATIONS, Operation, Pair, partner
from worker.core.distributed import Ranks
from worker.core.errors import TrainingError

_COUNT = 1021
"""Elements of a checked message: a prime, so that nothing divides it by accident."""

_RIGHT, _WRONG, _ABSENT = 0.0, 1.0, 2.0
_FINE = [_RIGHT, 0.0, 0.0, 0.0]
"""A verdict, and of a wrong value its place, the value, and the one that was wanted."""


def check_operations(ranks: Ranks, place: Place | None, name: str) -> set[Operation]:
    """Check every operation in one group; the others wait. Returns those that the backend does not have.

    Raises:
        TrainingError: on all ranks alike, naming operation, group and rank.
    """
    absent: set[Operation] = set()
    for operation in OPERATIONS:
        rows = ranks.gather(_check(operation, place) if place else _FINE)
        if any(row[0] == _ABSENT for row in rows):
            absent.add(operation)
        _complain(rows, operation, name)
    return absent


def _check(operation: Operation, place: Place) -> list[float]:
    data = buffers(operation, place, _COUNT)
    try:
        call(operation, place, data)
    except (RuntimeError, NotImplementedError) as error:
        if not _is_absent(error):
            raise
        return [_ABSENT, 0.0, 0.0, 0.0]
    # Where there is nothing to compare, there is nothing in `expected` either.
    for got, wanted in zip(outcome(operation, data), expected(operation, place, _COUNT), strict=False):
        row = _compare(got, wanted)
        if row != _FINE:
            return row
    return _FINE


def _is_absent(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or any(
        word in text for word in ("not support", "unsupported", "not implemented", "no backend type")
    )


def check_pairs(ranks: Ranks, rounds: Sequence[Sequence[Pair]]) -> None:
    """Blocking and non-blocking messages, there and back, between every pair; those of a round at once.

    Raises:
        TrainingError: on all ranks alike, naming the operation and the ranks.
    """
    for pairs in rounds:
        other = partner(ranks.rank, pairs)
        for operation, exchange in (("send and recv", _blocking), ("isend and irecv", _non_blocking)):
            row = _FINE
            if other is not None:
                own = values(ranks.rank, _COUNT, ranks.device)
                received = torch.zeros_like(own)
                exchange(own, received, other, first=ranks.rank < other)
                row = _compare(received, values(other, _COUNT, ranks.device))
            rows = ranks.gather(row)
            wrong = next((pair for pair in pairs if _WRONG in (rows[pair[0]][0], rows[pair[1]][0])), (0, 0))
            _complain(rows, operation, f"pair {wrong[0]}-{wrong[1]}")


def _blocking(own: torch.Tensor, received: torch.Tensor, other: int, *, first: bool) -> None:
    steps = (lambda: dist.send(own, other), lambda: dist.recv(received, other))
    for step in steps if first else reversed(steps):
        step()


def _non_blocking(own: torch.Tensor, received: torch.Tensor, other: int, *, first: bool) -> None:
    sends, receives = dist.P2POp(dist.isend, own, other), dist.P2POp(dist.irecv, received, other)
    for work in dist.batch_isend_irecv([sends, receives] if first else [receives, sends]):
        work.wait()


def _compare(got: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    wrong = (got != wanted).nonzero()
    if not len(wrong):
        return _FINE
    at = int(wrong[0].item())
    return [_WRONG, float(at), float(got[at].item()), float(wanted[at].item())]


def _complain(rows: list[list[float]], operation: str, group: str) -> None:
    wrong = [(rank, row) for rank, row in enumerate(rows) if row[0] == _WRONG]
    if not wrong:
        return
    rank, (_, at, got, wanted) = wrong[0]
    more = f" (and {len(wrong) - 1} more ranks)" if len(wrong) > 1 else ""
    raise TrainingError(
        f"{operation} in {group}: rank {rank} got {got:g} instead of {wanted:g} at element {at:.0f}{more}",
        "The network, its driver or the communication library of that rank's node corrupts data: take the node out "
        "(resources.exclude) and try again.",
    )
