"""Our engine as `bench.engine` runs it: as a job does, without checkpoints."""

import tempfile
from pathlib import Path

from bench._bench import Bench, Tick
from trainyard.contract.layout import AttemptLayout, RunLayout
from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal
from worker.engine.step_sync import StepSync
from worker.engine.trainer import Trainer
from worker.reporting.reporter import NullReporter, SpoolReporter
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender


def trainyard(bench: Bench, tick: Tick) -> None:
    """Spool on disk, sender thread, the ranks' agreement, metrics every ten steps."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        attempt = RunLayout(Path(folder) / "job").attempt(1)
        attempt.root.mkdir(parents=True)
        reporter = _reporter(bench, attempt)
        Trainer(
            bench.spec(),
            bench.task,
            bench.ranks,
            reporter=reporter,
            step_sync=_Ticking(tick, bench.ranks, StopSignal(attempt.stop_request)),
            checkpoints=_NoCheckpoints(),  # type: ignore[arg-type]
        ).run()
        reporter.close(0.5)


class _Ticking(StepSync):
    """What the ranks agree on between steps, as in a real run, and the clock."""

    def __init__(self, tick: Tick, ranks: Ranks, stop: StopSignal) -> None:
        super().__init__(ranks, stop)
        self._tick = tick

    def should_stop(self) -> bool:
        self._tick()
        return super().should_stop()


class _NoCheckpoints:
    """No contender writes any."""

    start_step = last_step = saved_ranks = 0
    weights_only = False

    def due(self, step: int, total_steps: int) -> bool:
        return False

    def finish(self) -> None:
        return


def _reporter(bench: Bench, attempt: AttemptLayout) -> NullReporter | SpoolReporter:
    if not bench.ranks.first:
        return NullReporter()
    sender = SpoolSender(attempt, 1, lambda: ServiceClient(bench.service_url, "a1", "token"))
    return SpoolReporter(attempt, 1, 0, sender)
