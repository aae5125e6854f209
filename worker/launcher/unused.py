"""Unused resources of a program: ranks that each work by themselves, and GPUs that no process opens. The job gets a
warning, and ends if the spec says so."""

import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.reports import Failure

log = logging.getLogger(__name__)

GPUS_EVENT = "gpus_never_used"
GPU_PATIENCE_SECONDS = 300.0
"""How long a program may load its data before it uses a GPU."""


class Unused:
    """Reports unused resources. A file tells all nodes of the attempt that the job ends for this reason."""

    def __init__(self, layout: AttemptLayout, spec: TrainingSpec, warn: Callable[[str, str], None]) -> None:
        """
        Args:
            warn: Adds a warning of a type to the job's events.
        """
        self._path = layout.unused
        self._ends_job = spec.health.stop_if_unused
        self._warn = warn

    def report(self, event: str, message: str) -> None:
        """Warn, and request the end of the job if the spec asks for it."""
        self._warn(event, message)
        if not self._ends_job:
            return
        type_ = "".join(word.capitalize() for word in event.split("_"))
        failure = Failure(host=socket.gethostname(), type=type_, message=message, final=True)
        try:
            write_atomic(self._path, failure.model_dump_json())
        except OSError as error:
            log.warning("the job goes on, because the request to end it cannot be written: %s", error)

    @property
    def failure(self) -> Failure | None:
        """Why the job ends; None if it does not."""
        return read_failure(self._path) if self._ends_job else None


def read_failure(path: Path) -> Failure | None:
    """Return why an attempt ends, from its file `unused`; None without the file."""
    try:
        return Failure.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


class UnusedGpus:
    """The GPUs of a node that no process has opened."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._opened: set[int] = set()
        self._is_decided = False

    def find(self, gpus: Mapping[int, Mapping[str, float]], now: float) -> list[int]:
        """Return the unused GPUs when enough time has passed, once; else none.

        Args:
            gpus: A reading of each GPU. A GPU whose processes cannot be read counts as opened.
            now: The time of the reading in seconds.
        """
        self._started = now if self._started is None else self._started
        self._opened |= {
            gpu
            for gpu, values in gpus.items()
            if values.get("processes", 1.0) or values.get("utilization_percent", 0.0)
        }
        if self._is_decided or now - self._started < GPU_PATIENCE_SECONDS:
            return []
        self._is_decided = True
        return sorted(gpus.keys() - self._opened)


def describe_gpus(unused: list[int], count: int, node: int, nodes: int) -> str:
    """Return the message about unused GPUs of a node with `count` GPUs."""
    names = f"GPU{'s' if len(unused) > 1 else ''} {', '.join(map(str, unused))}"
    which = f"any of the {count} GPUs" if len(unused) == count > 1 else names
    of_node = f" of node {node}" if nodes > 1 else ""
    return (
        f"No process has opened {which}{of_node} in {GPU_PATIENCE_SECONDS / 60:.0f} minutes. If the program needs "
        "fewer GPUs, request fewer (gpus, --gpus); if it should use them, check that its torch has CUDA, and that it "
        "trains on all devices"
    )
