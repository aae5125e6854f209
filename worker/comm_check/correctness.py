"""Checks values: every operation in every group, and messages between every pair of ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from worker.comm_check.operations import GroupMember, buffers, call, expected, outcome, values
from worker.comm_check.plan import OPERATIONS, Operation, Pair, partner
from worker.core.distributed import Ranks
from worker.core.errors import TrainingError

_COUNT = 1021
"""Elements of a checked message: a prime, so that it is never a multiple of a chunk size."""

_CORRECT, _WRONG, _ABSENT = 0.0, 1.0, 2.0
_PASSED = [_CORRECT, 0.0, 0.0, 0.0]
"""A result: its kind, and for a wrong value the element, the value, and the expected value."""


def check_operations(ranks: Ranks, member: GroupMember | None, name: str) -> set[Operation]:
    """Check every operation in a group while the other ranks wait; return those that the backend lacks. A collective.

    Raises:
        TrainingError: On all ranks, naming operation, group and rank.
    """
    absent: set[Operation] = set()
    for operation in OPERATIONS:
        rows = ranks.gather(_check(operation, member) if member else _PASSED)
        if any(row[0] == _ABSENT for row in rows):
            absent.add(operation)
        _raise_if_wrong(rows, operation, name)
    return absent


def _check(operation: Operation, member: GroupMember) -> list[float]:
    data = buffers(operation, member, _COUNT)
    try:
        call(operation, member, data)
    except (RuntimeError, NotImplementedError) as error:
        if not _is_absent(error):
            raise
        return [_ABSENT, 0.0, 0.0, 0.0]
    # `expected` is empty on ranks that get no result.
    for got, expected_value in zip(outcome(operation, data), expected(operation, member, _COUNT), strict=False):
        row = _compare(got, expected_value)
        if row != _PASSED:
            return row
    return _PASSED


def _is_absent(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or any(
        word in text for word in ("not support", "unsupported", "not implemented", "no backend type")
    )


def check_pairs(ranks: Ranks, rounds: Sequence[Sequence[Pair]]) -> None:
    """Exchange blocking and non-blocking messages between every pair; the pairs of a round at once. A collective.

    Raises:
        TrainingError: On all ranks, naming the operation and the ranks.
    """
    for pairs in rounds:
        other = partner(ranks.rank, pairs)
        for operation, exchange in (("send and recv", _blocking), ("isend and irecv", _non_blocking)):
            row = _PASSED
            if other is not None:
                own = values(ranks.rank, _COUNT, ranks.device)
                received = torch.zeros_like(own)
                exchange(own, received, other, first=ranks.rank < other)
                row = _compare(received, values(other, _COUNT, ranks.device))
            rows = ranks.gather(row)
            wrong = next((pair for pair in pairs if _WRONG in (rows[pair[0]][0], rows[pair[1]][0])), (0, 0))
            _raise_if_wrong(rows, operation, f"pair {wrong[0]}-{wrong[1]}")


def _blocking(own: torch.Tensor, received: torch.Tensor, other: int, *, first: bool) -> None:
    steps = (lambda: dist.send(own, other), lambda: dist.recv(received, other))
    for step in steps if first else reversed(steps):
        step()


def _non_blocking(own: torch.Tensor, received: torch.Tensor, other: int, *, first: bool) -> None:
    sends, receives = dist.P2POp(dist.isend, own, other), dist.P2POp(dist.irecv, received, other)
    for work in dist.batch_isend_irecv([sends, receives] if first else [receives, sends]):
        work.wait()


def _compare(got: torch.Tensor, expected_value: torch.Tensor) -> list[float]:
    wrong = (got != expected_value).nonzero()
    if not len(wrong):
        return _PASSED
    at = int(wrong[0].item())
    return [_WRONG, float(at), float(got[at].item()), float(expected_value[at].item())]


def _raise_if_wrong(rows: list[list[float]], operation: str, group: str) -> None:
    wrong = [(rank, row) for rank, row in enumerate(rows) if row[0] == _WRONG]
    if not wrong:
        return
    rank, (_, at, got, expected_value) = wrong[0]
    more = f" (and {len(wrong) - 1} more ranks)" if len(wrong) > 1 else ""
    raise TrainingError(
        f"{operation} in {group}: rank {rank} got {got:g} instead of {expected_value:g} at element {at:.0f}{more}",
        "The network, its driver or the communication library of that rank's node corrupts data: exclude the node "
        "(resources.exclude) and submit again.",
    )
