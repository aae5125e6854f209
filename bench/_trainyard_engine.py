"""Trainyard's engine in `bench.engine`: as in a job, but without checkpoints."""

import tempfile
from pathlib import Path

from bench._no_checkpoints import NoCheckpoints
from bench._workload import StepCallback, Workload
from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal
from worker.engine.step_sync import StepSync
from worker.engine.trainer import Trainer
from worker.reporting.reporter import NullReporter, SpoolReporter
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender


def trainyard(workload: Workload, on_step: StepCallback) -> None:
    """Train with the spool, its sender thread, synchronized stop requests and metrics every ten steps."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        attempt = RunLayout(Path(folder) / "job").attempt("1")
        attempt.root.mkdir(parents=True)
        reporter = _reporter(workload, attempt)
        Trainer(
            workload.spec(),
            workload.task,
            workload.ranks,
            reporter=reporter,
            step_sync=_TimedStepSync(on_step, workload.ranks, StopSignal(attempt.stop_request)),
            checkpoints=NoCheckpoints(),
        ).run()
        reporter.close(0.5)


class _TimedStepSync(StepSync):
    """Synchronizes the ranks between steps, as in a job, and reports each step to the clock."""

    def __init__(self, on_step: StepCallback, ranks: Ranks, stop: StopSignal) -> None:
        super().__init__(ranks, stop)
        self._on_step = on_step

    def should_stop(self) -> bool:
        self._on_step()
        return super().should_stop()


def _reporter(workload: Workload, attempt: AttemptLayout) -> NullReporter | SpoolReporter:
    if not workload.ranks.is_first:
        return NullReporter()
    sender = SpoolSender(attempt, 1, lambda: ServiceClient(workload.service_url, "a1", "token"))
    return SpoolReporter(attempt, 1, 0, sender)
