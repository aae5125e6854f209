"""The sizes of a model's blocks and units, and the memory of a step.

Elements are values of the compute dtype in their gathered form: parameters that are gathered in the form in which they
are held, such as quantised parameters, count by their bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.plugins.planner.activation_memory import Op


@dataclass(frozen=True)
class Block:
    """A block; the forward computes the blocks one after the other."""

    ops: Sequence[Op]
    elements: int
    trained: int
    unit_elements: int
    """Elements of its largest FSDP unit; 0: its parameters belong to the root unit."""
    input_bytes: int
    """Bytes of its input, which is all that full activation checkpointing saves, or stores in host memory (offload)."""
    residual_grad: int = 0
    """Bytes of the gradient of its residual connection."""
    count: int = 1
    """The number of equal blocks in a row."""


@dataclass(frozen=True)
class Unit:
    """Elements of an FSDP unit; none if there is no such unit."""

    elements: int = 0
    trained: int = 0


NO_UNIT = Unit()


@dataclass(frozen=True)
class Memory:
    """The peak memory of one rank, in bytes."""

    peak: int
    parts: dict[str, int]
    """The parts of the peak, by the names in `step_memory.PARTS`."""
    phase: str
    host: int = 0
    """Host memory, with `fsdp.cpu_offload` or `offload` of activations."""
