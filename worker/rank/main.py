"""A rank: join the others, do the spec's task, leave an exit record or an error file."""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import FinishRecord
from trainyard.progress_file import ProgressCounter, ProgressWriter, interval
from worker.core.errors import TrainingError, describe, write_error
from worker.core.fence import RunFence
from worker.core.first_failure import describe_restart
from worker.core.flight_recorder import write_on_request
from worker.core.log_setup import LINE, TIME, ignore_missing_gpu_kernels
from worker.core.processes import PARENT_VARIABLE, WRAPPED_VARIABLE, die_with_parent
from worker.core.stop_signal import StopSignal
from worker.environment.rank_command import execute
from worker.environment.select import rank_environment

if TYPE_CHECKING:
    from worker.checkpoint.manager import CheckpointManager
    from worker.core.distributed import Ranks
    from worker.engine.trainer import Trainer
    from worker.reporting.reporter import NullReporter, SpoolReporter
    from worker.tasks.base import Task

log = logging.getLogger("worker")

_SEND_SECONDS = 3.0
_SEND_AFTER_FAILURE_SECONDS = 0.5
"""The other ranks and the next execution wait until a failed rank exits. The next execution sends the rest."""


@dataclass
class RankRun:
    """The data that a rank's tasks share."""

    layout: AttemptLayout
    launch: LaunchDocument
    execution: int
    stop: StopSignal
    on_exit: list[Callable[[float], None]] = field(default_factory=list)
    """Called before the process exits, with the seconds that each may take."""

    @property
    def spec(self) -> TrainingSpec:
        return self.launch.spec

    @property
    def run_layout(self) -> RunLayout:
        return RunLayout(self.layout.root.parent.parent)


def import_engine() -> None:
    """Import what `_train` imports, and what torch's optimizers import when they are created."""
    import torch._dynamo  # noqa: F401

    import worker.checkpoint.manager
    import worker.core.distributed
    import worker.engine.callbacks.profiler
    import worker.engine.run_inputs
    import worker.engine.trainer
    import worker.export.weights
    import worker.rank.load_task
    import worker.reporting.reporter
    import worker.reporting.spool_sender  # noqa: F401


def main(folder: str) -> None:
    """Run the rank to its end. Never returns: during interpreter shutdown, torch's threads abort the process."""
    layout = AttemptLayout(Path(folder).absolute())
    rank, execution = int(os.environ["RANK"]), execution_number(layout)
    redirect_output(layout.rank_log(rank))
    wrapped = WRAPPED_VARIABLE in os.environ
    die_with_parent(os.getppid() if wrapped else int(os.environ.get(PARENT_VARIABLE, os.getppid())))
    stop = StopSignal(layout.stop_request)
    stop.install()
    # Stacks are written by the handler itself, so that it works while the interpreter waits in a collective.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    if rank == 0:
        # The spool file shows the launcher that this execution has begun, even if it gets no further.
        layout.spool.mkdir(parents=True, exist_ok=True)
        layout.spool_file(execution).touch()
    log.info("%s, pid %d", _log_header(layout, rank), os.getpid())
    status = 1
    run: RankRun | None = None
    try:
        launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
        run = RankRun(layout, launch, execution, stop)
        _run_task(run)
        status = 0
    except BaseException as error:
        record_failure(layout, error, rank, execution, run.spec if run else None)
        # torchrun restarts a rank that exits with an error; this rank would fail again. The launcher reads the file.
        status = 0 if isinstance(error, TrainingError) else 1
    finally:
        with contextlib.suppress(Exception):
            for close in run.on_exit if run else ():
                close(_SEND_SECONDS if status == 0 else _SEND_AFTER_FAILURE_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def record_failure(
    layout: AttemptLayout, error: BaseException, rank: int, execution: int, spec: TrainingSpec | None
) -> None:
    """Write the rank's error file, and the traceback to its log even if the file cannot be written."""
    try:
        # The file is written before the log: the earliest error decides which rank failed.
        write_error(layout.rank_error(rank), describe(error, rank=rank, execution=execution, spec=spec))
    except OSError as unwritten:
        log.error("the error file cannot be written: %s", unwritten)
    log.error("rank %d failed", rank, exc_info=error)


def execution_number(layout: AttemptLayout) -> int:
    """Return the attempt's first execution plus the number of in-place restarts by torchrun."""
    first = os.environ.get("TRAINYARD_EXECUTION")
    if first is None:
        first = str(LaunchDocument.model_validate_json(layout.launch.read_bytes()).execution)
    return int(first) + _restarts()


def _log_header(layout: AttemptLayout, rank: int) -> str:
    """Return the first line of the rank's log, in the terms of the job's page: the attempt and its restart. Failures of
    two starts are compared by their last lines without numbers, so this line has the same words in both."""
    return f"rank {rank}, attempt {layout.root.name.partition('-')[0]}, restart {_restarts()}"


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def redirect_output(path: Path) -> None:
    """Redirect everything that this process and its libraries print to the rank's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format=LINE, datefmt=TIME, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _run_task(run: RankRun) -> None:
    if run.spec.task_kind.runs_program:
        from worker.rank.script import exec_script

        exec_script(run.layout, run.launch, run.execution)
    elif environment := rank_environment(run.spec, os.environ):
        # Run the same entry point again in the environment's Python, where the environment's variable is absent.
        root = run.layout.root
        execute(environment.command(["-m", "worker", str(root)], os.environ, root))
    elif run.spec.task_kind.tests_communication:
        _check_communication(run)
    else:
        # This precedes the import of torch, so that the watchdog sees the rank early.
        _train(run, _start_progress(run))


def _train(run: RankRun, progress: ProgressCounter) -> None:
    from worker.checkpoint.manager import CheckpointManager
    from worker.data.model_files import remove_private_folders
    from worker.rank.load_task import load_task

    run.on_exit.append(lambda _: remove_private_folders())
    ranks = _join(run)
    if ranks.device.type == "cpu":
        ignore_missing_gpu_kernels()
    progress.mark("starting")
    checkpoints = CheckpointManager(run.run_layout, run.launch, run.execution, ranks)
    reporter = _open_reporter(run, checkpoints.start_step, first=ranks.is_rank_0)
    checkpoints.bind(reporter)
    if run.spec.code:
        # The folder is appended, so that a user's file cannot shadow a module of ours or of torch.
        sys.path.append(str(run.layout.code))
    task, notices = load_task(run.spec, run.launch, run.run_layout, ranks, reporter, checkpoints, progress)
    progress.mark("starting")
    trainer = _build_trainer(run, ranks, task, reporter, checkpoints, progress)
    for notice in notices:
        reporter.event(notice.kind, notice.message, level=notice.level, data=notice.data)
    _report_start(run, reporter, ranks, start=checkpoints.start_step, trainer=trainer)
    outcome = trainer.run()
    if outcome.completed and run.spec.checkpoint.export:
        from worker.export.weights import export_weights

        progress.mark("exporting")
        trainer.report_export(outcome.step)
        if ranks.is_rank_0:
            RunFence(run.run_layout, run.launch.attempt_id).check()
        export_weights(
            run.run_layout.export,
            outcome.module,
            run.spec,
            task,
            outcome.step,
            ranks,
            sources=checkpoints.sources,
            metrics=outcome.metrics,
            job_id=run.launch.job_id,
            roots=run.launch.roots,
        )
    progress.mark("ending")
    reason = "completed" if outcome.completed else "paused" if outcome.paused else run.stop.reason()
    _leave(run, ranks, reporter, step=outcome.step, reason=reason, best_step=outcome.best_step)


def _join(run: RankRun) -> "Ranks":
    from worker.core import distributed
    from worker.core.signed_objects import sign_objects

    sign_objects(run.layout.token.read_bytes().strip())
    return distributed.join(run.spec)


def _start_progress(run: RankRun) -> ProgressCounter:
    progress = ProgressCounter()
    minutes = run.spec.health.stall_timeout_minutes
    if minutes is not None:
        rank = int(os.environ["RANK"])
        path, seconds = run.layout.progress_file(rank), interval(minutes * 60.0)
        ProgressWriter(progress, path, rank=rank, execution=run.execution, interval=seconds).start()
        write_on_request(run.layout, rank, with_stacks=run.spec.backend == "nccl")
    return progress


def _build_trainer(
    run: RankRun,
    ranks: "Ranks",
    task: "Task",
    reporter: "NullReporter | SpoolReporter",
    checkpoints: "CheckpointManager",
    progress: ProgressCounter,
) -> "Trainer":
    from worker.engine.callbacks.profiler import Profiler, TraceRequests
    from worker.engine.run_inputs import load_inputs
    from worker.engine.step_sync import StepSync
    from worker.engine.trainer import Trainer

    requests = TraceRequests(run.layout) if ranks.is_rank_0 else None
    if requests:
        requests.start()
    step_sync = StepSync(ranks, run.stop, requests.number) if requests else StepSync(ranks, run.stop)

    def agreed_request() -> int:
        return step_sync.profile_request

    return Trainer(
        run.spec,
        task,
        ranks,
        reporter=reporter,
        step_sync=step_sync,
        checkpoints=checkpoints,
        progress=progress,
        callbacks=[Profiler(run.spec.profile, run.run_layout.profiles, ranks, reporter, requests, agreed_request)],
        inputs=replace(load_inputs(run.spec, run.run_layout, run.launch.roots), pause_at=run.launch.pause_at_step),
    )


def _check_communication(run: RankRun) -> None:
    from worker.comm_check.run import CommCheck

    ranks = _join(run)
    reporter = _open_reporter(run, 0, first=ranks.is_rank_0)
    check = CommCheck(ranks, run.spec.backend, reporter, run.stop)
    completed = check.run(run.run_layout)
    _leave(run, ranks, reporter, step=check.step, reason="completed" if completed else run.stop.reason())


def _open_reporter(run: RankRun, start: int, *, first: bool) -> "NullReporter | SpoolReporter":
    from worker.reporting.reporter import NullReporter, SpoolReporter
    from worker.reporting.service_client import ServiceClient
    from worker.reporting.spool_sender import SpoolSender

    if not first:
        return NullReporter()
    launch = run.launch

    def connect() -> ServiceClient:
        return ServiceClient(launch.service_url, launch.attempt_id, run.layout.token.read_text().strip())

    sender = SpoolSender(run.layout, run.execution, connect)
    reporter = SpoolReporter(run.layout, run.execution, start, sender)
    run.on_exit.append(reporter.close)
    return reporter


def describe_start(spec: TrainingSpec, world: int, device: str, start: int, total: int) -> str:
    """Return how the training runs, and how far: `Training: DDP, fp32, 2 CPU ranks, 276 steps`."""
    ranks = f"{world} {'CPU' if device == 'cpu' else 'GPU'} rank{'s' * (world > 1)}"
    extent = f"from step {start} of {total}" if start else f"{total} step{'s' * (total != 1)}"
    return f"Training: {spec.strategy_kind.title}, {spec.precision}, {ranks}, {extent}"


def _report_start(
    run: RankRun, reporter: "NullReporter | SpoolReporter", ranks: "Ranks", *, start: int, trainer: "Trainer"
) -> None:
    """Report an execution's first events: its start, the reason of a restart, and surprising effects of the spec."""
    from worker.engine.strategies.base import draws_dropout

    spec, total = run.spec, trainer.total_steps
    reporter.event(
        "training_resumed" if start else "training_started",
        describe_start(spec, ranks.world, ranks.device.type, start, total),
        data={"step": start, "total_steps": total, "world_size": ranks.world, "device": ranks.device.type},
    )
    if _restarts():
        message, data = describe_restart(run.layout, run.execution, spec)
        reporter.event("restarted_in_place", message, level="warning", data=data)
    drawn = ["dropout masks"] if draws_dropout(trainer.module) else []
    drawn += ["noise on embeddings"] if spec.loss.neftune_alpha else []
    if ranks.world > 1 and drawn:
        message = f"{' and '.join(drawn)} depend on the number of ranks, so the updates of this run do too"
        reporter.event("layout_dependent", message, level="warning")
    batch = spec.batch
    accumulates = isinstance(batch.micro_size, int) and batch.micro_size * ranks.world < batch.size
    if spec.strategy_kind.accumulates_whole_gradients and not accumulates:
        single = "with one micro-batch per step it equals zero2"
        message = f"{spec.strategy} keeps whole gradients between micro-batches; {single}"
        reporter.event("strategy_equivalent", message)


def _leave(
    run: RankRun,
    ranks: "Ranks",
    reporter: "NullReporter | SpoolReporter",
    *,
    step: int,
    reason: str,
    best_step: int | None = None,
) -> None:
    """Write the exit record and leave the process group. Without the barrier first, gloo aborts some of the ranks."""
    from worker.core.distributed import leave

    ranks.barrier()
    if ranks.is_rank_0:
        reporter.flush_to_disk()
        record = FinishRecord.model_validate(
            {
                "execution": run.execution,
                "reason": reason,
                "step": step,
                "best_step": best_step,
                "restarts": _restarts(),
                "time": datetime.now(UTC),
            }
        )
        write_atomic(run.layout.finish(run.execution), record.model_dump_json())
        log.info("%s after %d steps", reason, step)
    leave()
