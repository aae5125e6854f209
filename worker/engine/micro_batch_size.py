"""`batch.micro_size: auto`: how many examples a rank computes at once, tried out before the first step, and kept.

Where a forward and backward talk to no other rank, the whole share is tried and halved until it fits. Where they do
(sharded models), one rank that runs out of memory would leave the others waiting in a collective for good: there the
peaks of two small tries say what a larger one would need, and nothing runs out.
"""

import contextlib
import gc
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from trainyard.contract.layout import write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.core.errors import is_out_of_memory
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)

SPARE = 0.9
"""The part of the device's memory that an estimate may fill: fragments and other kernels take the rest."""


@dataclass(frozen=True)
class MicroBatchChoice:
    """What was chosen, and what was tried for it."""

    micro_size: int
    tried: tuple[int, ...] = ()
    how: str = "tried"


def halvings(share: int) -> list[int]:
    """The share of a rank, its half, and so on down to 1."""
    sizes = [share]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def search_down(share: int, fits: Callable[[int], bool]) -> MicroBatchChoice:
    """The largest halving that fits on all ranks; 1 where none does, which then fails as any step would."""
    tried = []
    for size in halvings(share):
        tried.append(size)
        if size == 1 or fits(size):
            break
    return MicroBatchChoice(tried[-1], tuple(tried))


def estimate(share: int, peaks: tuple[int, int], room: float) -> MicroBatchChoice:
    """The largest halving whose peak, on the line through those of 1 and 2 examples, stays within `room` bytes."""
    each = max(0, peaks[1] - peaks[0])
    fitting = (size for size in halvings(share) if peaks[0] + each * (size - 1) <= room)
    return MicroBatchChoice(next(fitting, 1), (1, 2), "estimated")


class MicroBatchFinder:
    """Finds the micro size of a fresh run; a later execution on the same layout takes what is recorded."""

    def __init__(self, spec: TrainingSpec, ranks: Ranks, path: Path | None, reporter: Reporter) -> None:
        self._spec = spec
        self._ranks = ranks
        self._path = path
        self._reporter = reporter

    def settle(self, share: int, compute: Callable[[int], None], module: nn.Module) -> int:
        """The micro size, the same on every rank. A collective.

        Args:
            share: Examples of the longest share of a rank.
            compute: Forward and backward of so many examples, the gradients dropped. Local but for sharded models.
            module: Whose buffers a forward may change.
        """
        known = self._ranks.from_first(self._recorded() if self._ranks.first else 0)
        if known:
            return known
        settled = self._search(share, compute, module)
        if self._ranks.first:
            self._record(settled, share)
        return settled.micro_size

    def _search(self, share: int, compute: Callable[[int], None], module: nn.Module) -> MicroBatchChoice:
        with preserve_buffers(module), self._moments_to_come(module):
            if not self._talks:
                return search_down(share, lambda size: not self._ranks.any(self._runs_out(size, compute)))
            if self._ranks.device.type != "cuda" or share <= 2:
                return MicroBatchChoice(share, how="not tried")
            peaks = tuple(self._peak(size, compute) for size in (1, 2))
            found = self._ranks.gather([estimate(share, (peaks[0], peaks[1]), self._room()).micro_size])
            return MicroBatchChoice(int(min(row[0] for row in found)), (1, 2), "estimated")

    @property
    def _talks(self) -> bool:
        """Whether a forward has collectives."""
        spec = self._spec
        return spec.strategy not in ("single", "ddp", "dp") or (spec.strategy == "ddp" and spec.ddp.sync_batchnorm)

    def _runs_out(self, size: int, compute: Callable[[int], None]) -> bool:
        try:
            compute(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.info("a micro-batch of %d examples does not fit: %s", size, str(error).partition("\n")[0])
        else:
            return False
        finally:
            forget(self._ranks.device)
        return True

    def _peak(self, size: int, compute: Callable[[int], None]) -> int:
        torch.cuda.reset_peak_memory_stats(self._ranks.device)
        compute(size)
        peak = torch.cuda.max_memory_allocated(self._ranks.device)
        forget(self._ranks.device)
        return peak

    def _room(self) -> float:
        free, _ = torch.cuda.mem_get_info(self._ranks.device)
        return SPARE * (free + torch.cuda.memory_reserved(self._ranks.device))

    @contextlib.contextmanager
    def _moments_to_come(self, module: nn.Module) -> Iterator[None]:
        """Hold what the optimizer will: it has no state before its first step. On a host nothing is taken that is not
        written to, so there it would prove nothing."""
        held: list[torch.Tensor] = []
        if self._ranks.device.type == "cuda" and not self._spec.fsdp.cpu_offload:
            copies = 1 if self._spec.optimizer.name == "sgd" else 2
            for parameter in module.parameters():
                if parameter.requires_grad:
                    held += [torch.empty_like(parameter, requires_grad=False) for _ in range(copies)]
        yield
        held.clear()

    @property
    def _layout(self) -> dict[str, object]:
        spec = self._spec
        return {
            "world_size": self._ranks.world,
            "strategy": spec.strategy,
            "precision": spec.precision,
            "batch_size": spec.batch.size,
        }

    def _recorded(self) -> int:
        if self._path is None:
            return 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text())
            if {key: found[key] for key in self._layout} == self._layout:
                return int(found["micro_size"])
        return 0

    def _record(self, settled: MicroBatchChoice, share: int) -> None:
        data = {**self._layout, "micro_size": settled.micro_size, "tried": list(settled.tried), "how": settled.how}
        if self._path is not None:
            write_atomic(self._path, json.dumps(data))
        pieces = -(-share // settled.micro_size)
        told = f"{settled.how}: {', '.join(map(str, settled.tried))}" if settled.tried else settled.how
        message = f"batch.micro_size is {settled.micro_size} ({told}); an update takes {pieces} micro-batch(es) a rank"
        self._reporter.event("micro_size_settled", message, data=data)


@contextlib.contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were: batch statistics are not to remember examples of a try."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)


def forget(device: torch.device) -> None:
    """Give back what a try held, so that the next one starts from the same."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
