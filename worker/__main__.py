"""One rank, under torchrun: `python -m worker <attempt folder>`."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.contract.launch import LaunchDocument
from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.reports import FinishRecord
from worker.errors import TrainingError, describe, read_errors, write_error
from worker.processes import PARENT, die_with_parent
from worker.signals import StopSignal

if TYPE_CHECKING:
    from worker.distributed import Ranks
    from worker.engine.trainer import Outcome, Trainer
    from worker.reporter import SilentReporter, SpoolReporter

log = logging.getLogger("worker")

_LAST_SENDING_SECONDS = 3.0
_FAILED_SENDING_SECONDS = 0.5
"""The other ranks and the next execution wait for a failed one to be gone; that one sends what stays in the spool."""


def main(folder: str) -> None:
    """Run the rank to its end. Never returns: interpreter shutdown is where threads of torch abort."""
    layout = AttemptLayout(Path(folder).absolute())
    rank, execution = int(os.environ["RANK"]), execution_number(layout)
    redirect_output(layout.rank_log(rank))
    die_with_parent(int(os.environ.get(PARENT, os.getppid())))
    stop = StopSignal(layout.stop_request)
    stop.install()
    if rank == 0:
        # Its spool tells the launcher that this execution has begun, even if it gets no further.
        layout.spool.mkdir(parents=True, exist_ok=True)
        layout.spool_file(execution).touch()
    log.info("rank %d, execution %d, pid %d", rank, execution, os.getpid())
    status = 1
    closing: list[Callable[[float], None]] = []
    try:
        _train(layout, execution, stop, closing)
        status = 0
    except BaseException as error:
        # First of all: whose error is the earliest decides which rank is blamed.
        write_error(layout.rank_error(rank), describe(error, rank=rank, execution=execution))
        log.exception("rank %d failed", rank)
        # torchrun restarts what fails, and this would fail again. The launcher finds the error file.
        status = 0 if isinstance(error, TrainingError) else 1
    finally:
        with contextlib.suppress(Exception):
            for close in closing:
                close(_LAST_SENDING_SECONDS if status == 0 else _FAILED_SENDING_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def execution_number(layout: AttemptLayout) -> int:
    """The attempt's first execution, and one more for each in-place restart of torchrun."""
    first = os.environ.get("TRAINYARD_EXECUTION")
    if first is None:
        first = str(LaunchDocument.model_validate_json(layout.launch.read_bytes()).execution)
    return int(first) + _restarts()


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def redirect_output(path: Path) -> None:
    """Everything that this process and its libraries print goes to the rank's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _train(layout: AttemptLayout, execution: int, stop: StopSignal, closing: list[Callable[[float], None]]) -> None:
    from worker import distributed
    from worker.checkpoint.manager import CheckpointManager
    from worker.engine.trainer import Trainer
    from worker.tasks.select import select_task

    launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
    run = RunLayout(layout.root.parent.parent)
    ranks = distributed.join(launch.spec.backend)
    stop.bind(ranks.any)
    checkpoints = CheckpointManager(run, launch, execution, ranks)
    reporter = _reporter(layout, launch, execution, checkpoints.start_step, first=ranks.first)
    closing.append(reporter.close)
    checkpoints.bind(reporter)
    task = select_task(launch.spec)
    trainer = Trainer(launch.spec, task, ranks, reporter=reporter, stop=stop, checkpoints=checkpoints)
    _announce(layout, execution, reporter, launch, ranks, start=checkpoints.start_step, trainer=trainer)
    outcome = trainer.run()
    if outcome.completed and launch.spec.checkpoint.export:
        from worker.checkpoint.export import export_weights

        export_weights(run.export, outcome.module, launch.spec, task, outcome.step, ranks)
    _leave(layout, execution, ranks, reporter, outcome, stop)


def _reporter(
    layout: AttemptLayout, launch: LaunchDocument, execution: int, start: int, *, first: bool
) -> "SilentReporter | SpoolReporter":
    from worker.reporter import SilentReporter, SpoolReporter
    from worker.service_client import ServiceClient
    from worker.spool_sender import SpoolSender

    if not first:
        return SilentReporter()

    def connect() -> ServiceClient:
        return ServiceClient(launch.service_url, launch.attempt_id, layout.token.read_text().strip())

    return SpoolReporter(layout, execution, start, SpoolSender(layout, execution, connect))


def _announce(
    layout: AttemptLayout,
    execution: int,
    reporter: "SilentReporter | SpoolReporter",
    launch: LaunchDocument,
    ranks: "Ranks",
    *,
    start: int,
    trainer: "Trainer",
) -> None:
    """The first events of an execution: where it begins, after what, and what its user should know."""
    from worker.engine.model import draws_dropout

    spec, total = launch.spec, trainer.total_steps
    where = f"at step {start} of {total}" if start else f"for {total} steps"
    reporter.event(
        "training_resumed" if start else "training_started",
        f"{spec.strategy} in {spec.precision} on {ranks.world} {ranks.device.type} rank(s), {where}",
        data={"step": start, "total_steps": total, "world_size": ranks.world, "device": ranks.device.type},
    )
    if _restarts():
        own = [error for error in read_errors(layout.errors, execution - 1) if not error.consequence]
        what = f"rank {own[0].rank}: {own[0].message}" if own else "a rank was lost without a word"
        reporter.event("restarted_in_place", f"torchrun started the ranks again, after {what}", level="warning")
    if ranks.world > 1 and draws_dropout(trainer.module):
        message = "dropout draws differ with the number of ranks: this run's updates are this layout's own"
        reporter.event("layout_dependent", message, level="warning")
    if spec.strategy == "zero1" and not _accumulates(launch, ranks):
        message = "zero1 keeps whole gradients between micro-batches; with one micro-batch a step it is zero2"
        reporter.event("strategy_equivalent", message)


def _accumulates(launch: LaunchDocument, ranks: "Ranks") -> bool:
    batch = launch.spec.batch
    return isinstance(batch.micro_size, int) and batch.micro_size * ranks.world < batch.size


def _leave(
    layout: AttemptLayout,
    execution: int,
    ranks: "Ranks",
    reporter: "SilentReporter | SpoolReporter",
    outcome: "Outcome",
    stop: StopSignal,
) -> None:
    """The order matters: without the barrier or the teardown after it, gloo aborts some of the exits."""
    from worker.distributed import leave

    ranks.barrier()
    if ranks.first:
        reporter.flush_to_disk()
        reason = "completed" if outcome.completed else stop.reason()
        record = FinishRecord.model_validate(
            {
                "execution": execution,
                "reason": reason,
                "step": outcome.step,
                "restarts": _restarts(),
                "time": datetime.now(UTC),
            }
        )
        write_atomic(layout.finish(execution), record.model_dump_json())
        log.info("%s after %d steps", reason, outcome.step)
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
