"""One rank, under torchrun: `python -m worker <attempt folder>`."""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord
from trainyard.progress_file import ProgressCounter, ProgressWriter, interval
from worker.core.errors import TrainingError, describe, write_error
from worker.core.processes import PARENT, die_with_parent
from worker.core.stop_signal import StopSignal
from worker.launcher import torchrun
from worker.launcher.exit_record import describe_restart

if TYPE_CHECKING:
    from worker.core.distributed import Ranks
    from worker.engine.trainer import Trainer
    from worker.reporting.reporter import NullReporter, SpoolReporter

log = logging.getLogger("worker")

_LAST_SENDING_SECONDS = 3.0
_FAILED_SENDING_SECONDS = 0.5
"""The other ranks and the next execution wait for a failed one to be gone; that one sends what stays in the spool."""


def main(folder: str) -> None:
    """Run the rank to its end. Never returns: interpreter shutdown is where threads of torch abort."""
    layout = AttemptLayout(Path(folder).absolute())
    rank, execution = int(os.environ["RANK"]), execution_number(layout)
    redirect_output(layout.rank_log(rank))
    wrapped = torchrun.WRAPPED in os.environ
    die_with_parent(os.getppid() if wrapped else int(os.environ.get(PARENT, os.getppid())))
    stop = StopSignal(layout.stop_request)
    stop.install()
    # Written by the handler itself, so that it works while the interpreter waits in a collective.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    if rank == 0:
        # Its spool tells the launcher that this execution has begun, even if it gets no further.
        layout.spool.mkdir(parents=True, exist_ok=True)
        layout.spool_file(execution).touch()
    log.info("rank %d, execution %d, pid %d", rank, execution, os.getpid())
    status = 1
    spec: TrainingSpec | None = None
    closing: list[Callable[[float], None]] = []
    try:
        launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
        spec = launch.spec
        _run(layout, launch, execution, stop, closing)
        status = 0
    except BaseException as error:
        # First of all: whose error is the earliest decides which rank is blamed.
        write_error(layout.rank_error(rank), describe(error, rank=rank, execution=execution, spec=spec))
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


def _beat(layout: AttemptLayout, launch: LaunchDocument, rank: int, execution: int) -> ProgressCounter:
    pulse = ProgressCounter()
    minutes = launch.spec.health.stall_timeout_minutes
    if minutes is not None:
        every = interval(minutes * 60.0)
        ProgressWriter(pulse, layout.progress_file(rank), rank=rank, execution=execution, interval=every).start()
    return pulse


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


def _run(
    layout: AttemptLayout,
    launch: LaunchDocument,
    execution: int,
    stop: StopSignal,
    closing: list[Callable[[float], None]],
) -> None:
    """What the spec asks of a rank."""
    match launch.spec.task:
        case "script":
            from worker.rank.script import exec_script

            exec_script(layout, launch, execution)
        case "comm_check":
            _check_communication(layout, launch, execution, stop, closing)
        case _:
            pulse = _beat(layout, launch, int(os.environ["RANK"]), execution)
            _train(layout, launch, execution, stop, closing, pulse)


def _train(
    layout: AttemptLayout,
    launch: LaunchDocument,
    execution: int,
    stop: StopSignal,
    closing: list[Callable[[float], None]],
    pulse: ProgressCounter,
) -> None:
    from worker.checkpoint.manager import CheckpointManager
    from worker.core import distributed
    from worker.engine.callbacks.profiler import Requests, StepProfiler
    from worker.engine.step_sync import StepSync
    from worker.engine.trainer import Trainer
    from worker.tasks.select import select_task

    run = RunLayout(layout.root.parent.parent)
    ranks = distributed.join(launch.spec)
    pulse.mark("starting")
    checkpoints = CheckpointManager(run, launch, execution, ranks)
    reporter = _reporter(layout, launch, execution, checkpoints.start_step, first=ranks.first)
    closing.append(reporter.close)
    checkpoints.bind(reporter)
    if launch.spec.code:
        # Last: a file of the user's named like one of ours, or like torch, is not in our way.
        sys.path.append(str(layout.code))
    task = select_task(launch.spec)
    pulse.mark("starting")
    requests = Requests(layout) if ranks.first else None
    if requests:
        requests.start()
    trainer = Trainer(
        launch.spec,
        task,
        ranks,
        reporter=reporter,
        boundary=StepSync(ranks, stop, requests.number) if requests else StepSync(ranks, stop),
        checkpoints=checkpoints,
        pulse=pulse,
        record=run.micro_size,
        profiler=StepProfiler(launch.spec.profile, run.profiles, ranks, reporter, requests),
    )
    _announce(layout, execution, reporter, launch, ranks, start=checkpoints.start_step, trainer=trainer)
    outcome = trainer.run()
    if outcome.completed and launch.spec.checkpoint.export:
        from worker.export.weights import export_weights

        pulse.mark("exporting")
        export_weights(run.export, outcome.module, launch.spec, task, outcome.step, ranks)
    pulse.mark("ending")
    _leave(layout, execution, ranks, reporter, stop, step=outcome.step, completed=outcome.completed)


def _check_communication(
    layout: AttemptLayout,
    launch: LaunchDocument,
    execution: int,
    stop: StopSignal,
    closing: list[Callable[[float], None]],
) -> None:
    from worker.comm_check.run import CommCheck
    from worker.core import distributed

    ranks = distributed.join(launch.spec)
    reporter = _reporter(layout, launch, execution, 0, first=ranks.first)
    closing.append(reporter.close)
    check = CommCheck(ranks, launch.spec.backend, reporter, stop)
    completed = check.run(RunLayout(layout.root.parent.parent))
    _leave(layout, execution, ranks, reporter, stop, step=check.step, completed=completed)


def _reporter(
    layout: AttemptLayout, launch: LaunchDocument, execution: int, start: int, *, first: bool
) -> "NullReporter | SpoolReporter":
    from worker.reporting.reporter import NullReporter, SpoolReporter
    from worker.reporting.service_client import ServiceClient
    from worker.reporting.spool_sender import SpoolSender

    if not first:
        return NullReporter()

    def connect() -> ServiceClient:
        return ServiceClient(launch.service_url, launch.attempt_id, layout.token.read_text().strip())

    return SpoolReporter(layout, execution, start, SpoolSender(layout, execution, connect))


def _announce(
    layout: AttemptLayout,
    execution: int,
    reporter: "NullReporter | SpoolReporter",
    launch: LaunchDocument,
    ranks: "Ranks",
    *,
    start: int,
    trainer: "Trainer",
) -> None:
    """The first events of an execution: where it begins, after what, and what its user should know."""
    from worker.engine.strategies.base import draws_dropout

    spec, total = launch.spec, trainer.total_steps
    where = f"at step {start} of {total}" if start else f"for {total} steps"
    reporter.event(
        "training_resumed" if start else "training_started",
        f"{spec.strategy} in {spec.precision} on {ranks.world} {ranks.device.type} rank(s), {where}",
        data={"step": start, "total_steps": total, "world_size": ranks.world, "device": ranks.device.type},
    )
    if _restarts():
        message, data = describe_restart(layout, execution, spec)
        reporter.event("restarted_in_place", message, level="warning", data=data)
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
    reporter: "NullReporter | SpoolReporter",
    stop: StopSignal,
    *,
    step: int,
    completed: bool,
) -> None:
    """The order matters: without the barrier or the teardown after it, gloo aborts some of the exits."""
    from worker.core.distributed import leave

    ranks.barrier()
    if ranks.first:
        reporter.flush_to_disk()
        reason = "completed" if completed else stop.reason()
        record = FinishRecord.model_validate(
            {
                "execution": execution,
                "reason": reason,
                "step": step,
                "restarts": _restarts(),
                "time": datetime.now(UTC),
            }
        )
        write_atomic(layout.finish(execution), record.model_dump_json())
        log.info("%s after %d steps", reason, step)
    leave()
