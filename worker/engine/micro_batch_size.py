"""Finds `batch.micro_size: auto`: how many examples a rank computes at once, before the first step.

Where a forward and backward need no other rank, the rank's whole share is tried, then its half, until it fits. Where
they do (sharded models), a rank that runs out of memory would leave the others in a collective forever: there the
peaks of two small dry runs give an estimate, and nothing runs out of memory.
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
from worker.engine.optim import converts_values
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)

USABLE_MEMORY = 0.9
"""The fraction of free device memory that an estimate may fill; fragmentation and other kernels need the rest."""


@dataclass(frozen=True)
class MicroBatchChoice:
    """The chosen size, and the sizes that were tried."""

    micro_size: int
    tried: tuple[int, ...] = ()
    how: str = "tried"


def halvings(share: int) -> list[int]:
    """Return the share of a rank, its half, and so on down to 1."""
    sizes = [share]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def search_down(share: int, fits: Callable[[int], bool]) -> MicroBatchChoice:
    """Return the largest halving that fits; 1 if none does, which then fails in the first step."""
    tried = []
    for size in halvings(share):
        tried.append(size)
        if size == 1 or fits(size):
            break
    return MicroBatchChoice(tried[-1], tuple(tried))


def estimate(share: int, peaks: tuple[int, int], available: float) -> MicroBatchChoice:
    """Return the largest halving whose peak is at most `available` bytes, by linear extrapolation from the peaks of
    1 and 2 examples."""
    per_example = max(0, peaks[1] - peaks[0])
    fitting = (size for size in halvings(share) if peaks[0] + per_example * (size - 1) <= available)
    return MicroBatchChoice(next(fitting, 1), (1, 2), "estimated")


class MicroBatchFinder:
    """Finds the size for a fresh run, and records it for later executions with the same layout."""

    def __init__(self, spec: TrainingSpec, ranks: Ranks, path: Path | None, reporter: Reporter) -> None:
        self._spec = spec
        self._ranks = ranks
        self._path = path
        self._reporter = reporter

    def find(self, share: int, dry_run: Callable[[int], None], module: nn.Module) -> int:
        """Return the micro-batch size, the same on every rank. A collective.

        Args:
            share: Examples in the largest share of a rank.
            dry_run: Does a forward and backward of so many examples and drops the gradients. Only for sharded models
                a collective.
            module: The model, whose buffers a forward may change.
        """
        recorded = self._ranks.from_rank_0(self._recorded() if self._ranks.is_rank_0 else 0)
        if recorded:
            return recorded
        choice = self._search(share, dry_run, module)
        if self._ranks.device.type == "cuda":
            # Report the peak of training, not of sizes that did not fit.
            torch.cuda.reset_peak_memory_stats(self._ranks.device)
        if self._ranks.is_rank_0:
            self._record(choice, share)
        return choice.micro_size

    def _search(self, share: int, dry_run: Callable[[int], None], module: nn.Module) -> MicroBatchChoice:
        with preserve_buffers(module), self._reserve_optimizer_state(module):
            if not self._communicates:
                return search_down(share, lambda size: not self._ranks.any(self._exceeds_memory(size, dry_run)))
            if self._ranks.device.type != "cuda" or share <= 2:
                return MicroBatchChoice(share, how="not tried")
            peaks = tuple(self._peak(size, dry_run) for size in (1, 2))
            rows = self._ranks.gather([estimate(share, (peaks[0], peaks[1]), self._available()).micro_size])
            return MicroBatchChoice(int(min(row[0] for row in rows)), (1, 2), "estimated")

    @property
    def _communicates(self) -> bool:
        """Whether a forward has collectives."""
        strategy = self._spec.strategy_kind
        return strategy.is_sharded or (strategy.sums_in_buckets and self._spec.ddp.sync_batchnorm)

    def _exceeds_memory(self, size: int, dry_run: Callable[[int], None]) -> bool:
        try:
            dry_run(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.info("a micro-batch of %d examples does not fit: %s", size, str(error).partition("\n")[0])
        else:
            return False
        finally:
            release_memory(self._ranks.device)
        return True

    def _peak(self, size: int, dry_run: Callable[[int], None]) -> int:
        torch.cuda.reset_peak_memory_stats(self._ranks.device)
        dry_run(size)
        peak = torch.cuda.max_memory_allocated(self._ranks.device)
        release_memory(self._ranks.device)
        return peak

    def _available(self) -> float:
        free, _ = torch.cuda.mem_get_info(self._ranks.device)
        return USABLE_MEMORY * (free + torch.cuda.memory_reserved(self._ranks.device))

    @contextlib.contextmanager
    def _reserve_optimizer_state(self, module: nn.Module) -> Iterator[None]:
        """Hold as much device memory as the optimizer will, which has no state before its first step. A host maps only
        memory that is written to, so there it would show nothing."""
        held: list[torch.Tensor] = []
        if self._ranks.device.type == "cuda" and not self._spec.fsdp.cpu_offload:
            copies = {"sgd": 1, "lion": 1, "adafactor": 0}.get(self._spec.optimizer.name, 2)
            if converts_values(self._spec):
                # All state of the optimizer exists already.
                copies = 0
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
            record = json.loads(self._path.read_text())
            if {key: record[key] for key in self._layout} == self._layout:
                return int(record["micro_size"])
        return 0

    def _record(self, choice: MicroBatchChoice, share: int) -> None:
        data = {**self._layout, "micro_size": choice.micro_size, "tried": list(choice.tried), "how": choice.how}
        if self._path is not None:
            write_atomic(self._path, json.dumps(data))
        number = -(-share // choice.micro_size)
        how = f"{choice.how}: {', '.join(map(str, choice.tried))}" if choice.tried else choice.how
        count = "1 micro-batch" if number == 1 else f"{number} micro-batches"
        message = f"batch.micro_size is {choice.micro_size} ({how}): {count} per rank and step"
        self._reporter.event("micro_size_chosen", message, data=data)


@contextlib.contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers on exit, so that batch statistics do not include the examples of a dry run."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)


def release_memory(device: torch.device) -> None:
    """Return the memory of a dry run to the device, so that the next dry run starts from the same state."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
