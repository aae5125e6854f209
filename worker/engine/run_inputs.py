"""The inputs of a run beside its spec, its task and its data."""

from dataclasses import dataclass

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS, AllowedRoots
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.engine.adapter_rules import Tensors
from worker.engine.generation import SampleGenerator, build_generator
from worker.engine.initial_adapter import read_adapter


@dataclass(frozen=True)
class RunInputs:
    """The parts of a run that its spec names, or its folder holds."""

    layout: RunLayout | None = None
    """The folder for data that later executions and readers need; None: nothing is stored."""
    samples: SampleGenerator | None = None
    adapter: Tensors | None = None
    """The adapter from which training starts."""
    roots: AllowedRoots = UNRESTRICTED_ROOTS
    """Below them the model and the adapter are read."""
    pause_at: int | None = None
    """The step after which this execution saves a checkpoint and ends."""


def load_inputs(spec: TrainingSpec, layout: RunLayout | None, roots: AllowedRoots = UNRESTRICTED_ROOTS) -> RunInputs:
    """Load the inputs that the spec names.

    Raises:
        RefusedError: Something cannot be loaded, or does not fit.
    """
    return RunInputs(layout, build_generator(spec, roots), read_adapter(spec, roots), roots)
