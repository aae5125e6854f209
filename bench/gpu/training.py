"""Trains a spec with the worker's engine in this process, as one rank, and returns what was reported."""

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from tests.support.no_checkpoints import NoCheckpoints
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Progress
from worker.checkpoint.manager import CheckpointManager
from worker.core import distributed
from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal
from worker.engine.step_sync import StepSync
from worker.engine.trainer import Trainer
from worker.export.weights import export_weights
from worker.reporting.reporter import Level, NullReporter
from worker.tasks.select import select_task

Accelerator = Literal["cpu", "cuda"]


@dataclass
class TrainedRun(NullReporter):
    """What one run reported."""

    series: dict[str, dict[int, float]] = field(default_factory=dict)
    """Values by metric and step."""
    seconds: list[float] = field(default_factory=list)
    """From the start of each step but the last to the start of the next one."""
    peak_bytes: int = 0
    """Most bytes in tensors on the GPU, start-up included; 0 on the CPU."""
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The data of the events, by type."""

    @property
    def losses(self) -> list[str]:
        """The training losses as text, with all digits."""
        return [repr(value) for _, value in sorted(self.series.get("train/loss", {}).items())]

    def points(self, step: int, values: Mapping[str, float], progress: Progress | None = None) -> None:
        for key, value in values.items():
            self.series.setdefault(key, {})[step] = value

    def event(self, type_: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None) -> None:
        self.events.setdefault(type_, []).append(data or {})


class GpuEngine:
    """Trains specs one after another in one process group, of one rank where none is given."""

    def __init__(self, accelerator: Accelerator, ranks: Ranks | None = None) -> None:
        """`ranks`: A process group that was joined before."""
        self.site = Site(accelerator, emulates_gpus=True)
        self._ranks = ranks
        if ranks is not None:
            return
        group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
        os.environ |= group | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "bench"}

    @property
    def on_gpu(self) -> bool:
        return self.site.accelerator == "cuda"

    def resolve(self, document: Mapping[str, Any]) -> TrainingSpec:
        return resolve(parse_spec({"gpus": 1, "seed": 1, **document}), self.site)

    def ranks(self, spec: TrainingSpec) -> Ranks:
        """Return the process group, which the first call joins."""
        if self._ranks is None:
            self._ranks = distributed.join(spec)
        return self._ranks

    def train(
        self,
        document: Mapping[str, Any],
        *,
        run: Path | None = None,
        until: int | None = None,
        export: bool = False,
        on_step: Callable[[], None] | None = None,
        wait_for_saves: bool = False,
    ) -> TrainedRun:
        """Train a spec.

        Args:
            run: The folder of checkpoints, from which an earlier run is continued. None: no checkpoints.
            until: Stop after this step.
            export: Write the model to the folder of the run.
            on_step: Is called before each step, and is not timed.
            wait_for_saves: Wait before each step until the last checkpoint is on disk.
        """
        spec = self.resolve(document)
        ranks = self.ranks(spec)
        result = TrainedRun()
        self.release()
        checkpoints = _manager(run, spec, ranks) if run else NoCheckpoints()
        if wait_for_saves:
            on_step = checkpoints.finish
        stop = (run or Path("/nonexistent")) / "stop"
        step_sync = _TimedStepSync(result, ranks, StopSignal(stop), checkpoints, until, on_step)
        task = select_task(spec)
        trainer = Trainer(
            spec,
            task,
            ranks,
            reporter=result,
            step_sync=step_sync,
            checkpoints=checkpoints,
        )
        outcome = trainer.run()
        if self.on_gpu:
            torch.cuda.synchronize()
            result.peak_bytes = torch.cuda.max_memory_allocated()
        if export and run is not None:
            export_weights(RunLayout(run).export, outcome.module, spec, task, outcome.step, ranks)
        return result

    def release(self) -> None:
        """Free what earlier runs left."""
        gc.collect()
        # What is left are imported modules, which the collections of the next runs need not scan.
        gc.freeze()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def close(self) -> None:
        if self._ranks is not None:
            distributed.leave()


class _TimedStepSync(StepSync):
    """Records the start of each step, and stops after a given one."""

    def __init__(
        self,
        result: TrainedRun,
        ranks: Ranks,
        stop: StopSignal,
        checkpoints: CheckpointManager,
        until: int | None,
        on_step: Callable[[], None] | None,
    ) -> None:
        super().__init__(ranks, stop)
        self._result = result
        self._step = checkpoints.start_step
        self._until = until
        self._on_step = on_step
        self._before: float | None = None

    def should_stop(self) -> bool:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._before is not None:
            self._result.seconds.append(now - self._before)
        if self._on_step:
            self._on_step()
        self._before = time.perf_counter()
        self._step += 1
        return super().should_stop() or (self._until is not None and self._step > self._until)


def _manager(run: Path, spec: TrainingSpec, ranks: Ranks) -> CheckpointManager:
    launch = LaunchDocument(
        job_id="bench",
        attempt_id="a1",
        attempt=1,
        tag="ty-bench-a1",
        service_url="http://127.0.0.1:1",
        execution=1,
        max_restarts=0,
        ranks_per_node=1,
        heartbeat_seconds=10,
        spec=spec,
    )
    manager = CheckpointManager(RunLayout(run), launch, 1, ranks)
    manager.bind(TrainedRun())
    return manager
