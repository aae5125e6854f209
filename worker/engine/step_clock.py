"""Times of the phases of a step, on the clock of the device that computes them.

On CUDA a call only launches kernels, so the host's clock would measure the launches. Events in the stream measure the
kernels; they can be read once the device has passed them.
"""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

Mark = Any
"""A time on a clock: host seconds, or an event in a CUDA stream."""


class StepClock(Protocol):
    """Marks times, and returns the seconds between two marks."""

    def mark(self) -> Mark:
        """Mark the present time. Does not wait for the device."""
        ...

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two marks that the device has passed."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        ...


class HostClock:
    """A clock for devices that have finished a computation when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


class CudaClock:
    """Events in the current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1000.0

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


def step_clock(device: torch.device) -> StepClock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class PhaseSeconds(NamedTuple):
    """Seconds of the phases of a step."""

    data: float
    forward: float
    forward_backward: float
    optimizer: float


@dataclass
class StepMarks:
    """The marks of a step."""

    started: Mark
    loaded: Mark = None
    forwards: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Start and end of each micro-batch's forward."""
    computed: Mark = None
    staged: Mark = None
    """The wait for the copy of a checkpoint's state is over."""
    updated: Mark = None

    def seconds(self, clock: StepClock) -> PhaseSeconds:
        """Return the phases, once the device has passed the marks."""
        return PhaseSeconds(
            clock.seconds(self.started, self.loaded),
            sum(clock.seconds(start, end) for start, end in self.forwards),
            clock.seconds(self.loaded, self.computed),
            clock.seconds(self.staged, self.updated),
        )

    def stall(self, clock: StepClock) -> float:
        """Return the seconds for which the update waited for the copy of a checkpoint's state."""
        return clock.seconds(self.computed, self.staged)
