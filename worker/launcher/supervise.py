"""The launcher of a node: claims the attempt, runs torchrun, sends heartbeats and logs, writes the exit record."""

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, RunLayout, write_atomic
from trainyard.contract.spec.environment import rank_variables
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Claim, ExitReason, Failure, FinishRecord, HeartbeatReply
from trainyard.progress_file import read_progress
from worker.core import processes
from worker.core.fence import FenceMonitor, RunFence
from worker.core.log_setup import LINE, TIME
from worker.launcher import exit_record, presence, script_job, torchrun, watchdog
from worker.launcher.claim import ClaimResult, claim_attempt, repeat_claim
from worker.launcher.environment import preparation_seconds
from worker.launcher.heartbeat import HeartbeatThread
from worker.launcher.idle import IdleWatch, read_counters
from worker.launcher.logs import LogShipper, LogStream, log_start, log_streams, ship_launch_log
from worker.launcher.node_check import reject_claimed, reject_node
from worker.launcher.nodes import AttemptContext, await_decision, publish, this_node
from worker.launcher.program_reports import ProgramReports
from worker.launcher.program_stop import END_SECONDS, ProgramStop
from worker.launcher.repeated_failures import stalled_as_before
from worker.launcher.resource_limits import raise_soft_limits
from worker.launcher.stalls import Events, StallMonitor, Watch, rank_processes
from worker.launcher.start import SignalCounter, WaitingTorchrun
from worker.launcher.stop_signals import (
    CANCEL_GRACE_SECONDS,
    SUSPENDED_SECONDS,
    SignalCause,
    StopRequest,
    SuspendDetector,
    TimeLimit,
    signal_of_ranks,
)
from worker.launcher.system_reports import NodeSpool, SystemReports, read_system
from worker.reporting.service_client import ServiceClient, ServiceError

log = logging.getLogger("worker.launcher.supervise")

_POLL_SECONDS = 0.2
_LAST_LOGS_SECONDS = 5.0
_LAST_REPORTS_SECONDS = 3.0
_FINISH_SECONDS = 10.0
_STACKS_SECONDS = 1.0
"""How long ranks may take to write their stacks: the handler runs at once, but the disk may be remote."""
_FENCE_SECONDS = 5.0
_NODES_SECONDS = 5.0
"""How long other nodes, and ranks that write their collectives, may take to see node 0's file on a network
filesystem."""


def run(attempt_folder: str, waiting: WaitingTorchrun | None = None, signals: SignalCounter | None = None) -> None:
    """Run one attempt on this node to its end, and write its exit record.

    Args:
        waiting: A process that becomes torchrun.
        signals: Installed handlers that may have counted signals.

    Raises:
        SystemExit: This node is not the first, and cannot run the spec.
    """
    if signals is None:
        signals = SignalCounter()
        signals.install()
    layout = AttemptLayout(Path(attempt_folder).absolute())
    launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
    # torchrun and the ranks inherit the umask and the limits.
    os.umask(launch.umask)
    raise_soft_limits()
    limit = TimeLimit.of(launch, os.environ, time.time())
    connect = partial(ServiceClient, launch.service_url, launch.attempt_id, layout.token.read_text().strip())
    logging.basicConfig(level=logging.INFO, format=LINE, datefmt=TIME, stream=sys.stderr)
    logging.getLogger("worker").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    node = this_node(launch, os.environ)
    context = AttemptContext(layout, launch, node, connect, lambda: signals.any)
    claimed = _claim(context) if node.is_first else None
    execution = _decide(context, claimed) if node.is_first else _follow(context)
    if execution is None:
        return
    presence.mark_alive(layout, node)
    try:
        variables = rank_variables(launch.spec, claimed.secrets if claimed else _repeat_claim(context))
        reports = ProgramReports(context, execution, variables) if launch.spec.task_kind.runs_program else None
        variables |= reports.variables if reports else {}
        process = torchrun.start(context, execution, variables, waiting)
    except (OSError, ServiceError) as error:
        log.exception("torchrun could not be started")
        message, kind = f"torchrun cannot start: {error}", type(error).__name__
        _post_finish(connect, exit_record.not_started(layout, execution, message, type_=kind))
        return
    late_claim = claimed.claim if claimed and not claimed.known_to_service else None
    Supervisor(context, execution, process, signals, limit, late_claim, reports).run()


def _decide(context: AttemptContext, claimed: ClaimResult | None) -> int | None:
    """On node 0, publish and return the execution that runs: none if the attempt is not claimed, or cannot start."""
    rejection, settle_seconds = None, context.launch.settle_seconds
    if claimed:
        log_start(context)
        if settle_seconds:
            log.info("the preceding attempt left no exit record; starting in %d s", settle_seconds)
            time.sleep(settle_seconds)
        rejection = reject_claimed(context, claimed)
        if rejection:
            ship_launch_log(context, _LAST_LOGS_SECONDS)
            _post_finish(context.connect, rejection)
    return publish(context.layout, context.node, claimed.execution if claimed and not rejection else None)


def _follow(context: AttemptContext) -> int | None:
    """On the other nodes, wait for node 0's decision and prepare this node.

    Raises:
        SystemExit: This node cannot run the spec.
    """
    wait = preparation_seconds(context.launch) + context.launch.settle_seconds
    execution = await_decision(context.layout, context.node, wait)
    if execution is None:
        return None
    log_start(context)
    if rejection := reject_node(context, execution):
        _post_finish(context.connect, rejection)
        # The other nodes already wait for this node: a failing task makes Slurm end them (--kill-on-bad-exit).
        sys.exit(1)
    return execution


def _claim(context: AttemptContext) -> ClaimResult | None:
    with contextlib.closing(context.connect()) as client:
        return claim_attempt(context.layout, context.launch, client)


def _repeat_claim(context: AttemptContext) -> Mapping[str, str]:
    with contextlib.closing(context.connect()) as client:
        return repeat_claim(context.layout, context.launch, client)


class Supervisor:
    """The loop around torchrun on one node."""

    def __init__(
        self,
        context: AttemptContext,
        first_execution: int,
        process: subprocess.Popen[bytes],
        signals: SignalCounter,
        limit: TimeLimit,
        late_claim: Claim | None,
        reports: ProgramReports | None,
    ) -> None:
        layout, launch, node, connect = context.layout, context.launch, context.node, context.connect
        self._layout = layout
        self._node = node
        self._first_execution = first_execution
        self._connect = connect
        self._signals = signals
        self._time_limit = limit
        self._suspensions = SuspendDetector()
        self._stop = StopRequest(layout)
        self._cause = SignalCause()
        self._ranks_signalled = False
        self._trace_requested = 0
        """The number of the last trace request that was forwarded."""
        self._killed_for: ExitReason | None = None
        self._failure: Failure | None = None
        execution = self._execution = partial(exit_record.last_execution, layout, self._first_execution)
        self._program_stop = ProgramStop.of(launch, lambda: layout.polls(execution()).exists())
        self._stalls: StallMonitor | None = None
        fence = RunFence(RunLayout(layout.root.parent.parent), launch.attempt_id)
        self._fence = FenceMonitor(fence, _FENCE_SECONDS)
        self._descendants: set[tuple[int, int]] = set()
        self._launch = launch
        self._process = process
        self._heartbeat = HeartbeatThread(
            launch.heartbeat_seconds,
            connect,
            execution,
            self._on_reply,
            late_claim=late_claim,
            node=node.index,
        )
        self._reports = reports
        self._log_shipper = LogShipper(log_streams(context), connect, limit=launch.log_bytes)

    def run(self) -> None:
        """Return when torchrun has ended and the service, if it can be reached, has the exit record."""
        layout, node = self._layout, self._node.index
        spool = self._reports or NodeSpool(layout, node, self._connect)
        system = read_system(layout, node, self._process.pid, self._execution, spool)
        self._stalls = self._watch_stalls(spool, system)
        try:
            self._heartbeat.start()
            self._log_shipper.start()
            self._suspensions.start()
            if self._reports:
                self._reports.start()
            system.start()
            signalled = self._supervise()
        finally:
            self._suspensions.close()
            system.close()
            self._kill_descendants()
            torchrun.remove_files(self._layout.root, self._node.index)
        spool.close(_LAST_REPORTS_SECONDS)
        presence.mark_exited(self._layout, self._node)
        if self._node.is_first and not self._fence.poll(at_once=True):
            self._write_exit_record(signalled)
        else:
            self._heartbeat.close()
            self._log_shipper.close(_LAST_LOGS_SECONDS)

    def _write_exit_record(self, signalled: bool) -> None:
        """On node 0, write and send the exit record: torchrun ends there only when it has ended on every node."""
        layout = self._layout
        if self._program_stop and self._program_stop.interrupted:
            self._killed_for = self._killed_for or self._stop.reason
        if self._program_stop and not self._killed_for:
            stop = self._stop.reason or ("preempted" if signalled else None), self._program_stop.answers(signalled)
            script_job.finalize_script(layout, self._first_execution, self._process.returncode, *stop)
        record = exit_record.finalize(
            layout,
            self._first_execution,
            self._process.returncode,
            killed_for=self._killed_for,
            failure=self._failure,
            spec=self._launch.spec,
            lost_nodes=partial(presence.await_others, layout, self._node),
        )
        failure = f": {record.failure.message}" if record.failure else ""
        log.info("attempt ended: %s after %d steps%s", record.reason, record.step, failure)
        self._heartbeat.close()
        self._log_shipper.close(_LAST_LOGS_SECONDS)
        _post_finish(self._connect, record)

    def _supervise(self) -> bool:
        """Wait for torchrun; return whether the scheduler sent a signal before its end. Later signals are ignored."""
        polled = time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS)
                return self._signals.stops > 0
            polled, previous = time.monotonic(), polled
            self._record_delay(polled - previous)
            self._descendants.update(processes.descendants(self._process.pid))
            if self._reports:
                self._reports.follow()
            self._add_rank_logs()
            self._handle_stop_requests()
            self._enforce_limits()

    def _record_delay(self, seconds: float) -> None:
        """Account for the seconds since the loop last ran; it runs several times per second."""
        if suspended := self._suspensions.collect():
            # `scontrol suspend` and gang scheduling stop every process of a job, including the launcher.
            log.warning("the job was suspended for %.0f s", suspended)
            self._time_limit.add_suspension(suspended)
        if self._stalls and seconds > SUSPENDED_SECONDS:
            # The loop was suspended, or blocked by a slow disk: missing progress in this time is no stall.
            self._stalls.add_suspension(seconds)

    def _add_rank_logs(self) -> None:
        """Ship the logs of this node's ranks. With several nodes, each rendezvous decides which ranks run here."""
        if self._node.count == 1:
            return
        for pid in processes.children(self._process.pid):
            rank = processes.rank_of(pid)
            if rank is not None:
                self._log_shipper.add(LogStream(str(rank), self._layout.rank_log(rank)))

    def _handle_stop_requests(self) -> None:
        warned = self._signals.warnings and not self._time_limit.explains_a_warning
        if self._time_limit.near:
            self._stop.request("time_limit")
        elif (self._signals.stops or warned) and self._stop.reason is None and self._cause.is_known(self._heartbeat):
            self._stop.request("preempted")
        ranks = torchrun.signalled_processes(self._launch, self._process.pid)
        if self._program_stop:
            self._program_stop.observe(ranks)
        if not self._stop.reason:
            return
        if self._program_stop:
            self._program_stop.request(ranks, self._stop.reason)
        elif not self._ranks_signalled:
            self._ranks_signalled = True
            # Ranks without a handler yet ignore the signal, and read the file later.
            processes.send_signal(ranks, signal_of_ranks(self._launch))

    def _enforce_limits(self) -> None:
        if self._fence.poll():
            log.error("another attempt of the job is the current one; this one ends without an exit record")
            self._kill_ranks()
            return
        reason, since = self._stop.reason, self._stop.since
        grace = since is not None and time.monotonic() - since > CANCEL_GRACE_SECONDS and reason == "user_cancelled"
        if self._time_limit.passed:
            self._kill("time_limit")
        elif reason and self._program_stop:
            ranks = torchrun.signalled_processes(self._launch, self._process.pid)
            if self._program_stop.enforce(ranks, reason, is_over=grace or self._time_limit.ends_in(END_SECONDS)):
                self._kill(reason)
        elif grace:
            self._kill("user_cancelled")
        elif self._reports and (failure := self._reports.failure):
            self._failure = failure
            self._kill("error")
        elif self._stalls:
            self._check_stall(self._stalls)

    def _watch_stalls(self, events: Events, system: SystemReports) -> StallMonitor | None:
        layout, node, torchrun, health = self._layout, self._node, self._process.pid, self._launch.spec.health
        watches: list[Watch] = []
        if health.stall_timeout_minutes is not None and node.is_first:
            # Not every rank of a script need write progress.
            world = node.count * self._launch.processes_per_node if self._launch.spec.task_kind.in_loop else 0
            watches.append(watchdog.Watchdog(layout, world, health.stall_timeout_minutes * 60.0, self._execution))
        if (reports := self._reports) is not None:
            watches.append(
                IdleWatch(
                    layout,
                    node,
                    health,
                    lambda: read_counters(torchrun, layout.rank_logs(), reports.logged, system.gpu_percent),
                    lambda: read_progress(layout.progress, self._execution()),
                )
            )
        if not watches and health.stall_timeout_minutes is None:
            return None
        return StallMonitor(
            layout,
            node,
            watches,
            self._execution,
            lambda: rank_processes(layout, torchrun, self._execution()),
            events,
        )

    def _check_stall(self, monitor: StallMonitor) -> None:
        """Kill a stalled run. Node 0 detects the stall, the others read its file; all make their ranks write stacks."""
        stall = monitor.poll()
        if not self._node.is_first:
            if self._layout.stalled.exists():
                self._write_stacks()
                if self._records_collectives:
                    time.sleep(_NODES_SECONDS)
                self._kill("stalled")
            return
        if stall is None:
            return
        log.error("%s", stall.message)
        if self._node.count > 1 or self._records_collectives:
            watchdog.publish(self._layout, stall)
        logs = [self._layout.rank_log(rank) for rank in stall.behind[:1]]
        ends = [watchdog.size_of(path) for path in logs]
        self._write_stacks()
        if self._node.count > 1 or self._records_collectives:
            time.sleep(_NODES_SECONDS)
        stack = "".join(map(watchdog.stack_after, logs, ends))
        execution, is_proven = self._execution(), stall.type == watchdog.DIFFERENT_COLLECTIVES
        final = is_proven and stalled_as_before(self._layout, execution, stall.type)
        self._failure = watchdog.to_failure(stall, stack, final=final)
        self._kill("stalled")

    @property
    def _records_collectives(self) -> bool:
        """Whether the ranks write their latest collectives when a stall is announced."""
        return self._launch.spec.backend == "nccl"

    def _write_stacks(self) -> None:
        # A program with this signal as its warning would begin to save, and would be killed before it has saved.
        if signal_of_ranks(self._launch) != watchdog.STACKS:
            processes.send_signal([pid for pid, _ in processes.descendants(self._process.pid)], watchdog.STACKS)
        time.sleep(_STACKS_SECONDS)

    def _kill(self, reason: ExitReason) -> None:
        log.warning("killing the ranks: %s", reason)
        self._killed_for = reason
        self._kill_ranks()

    def _kill_ranks(self) -> None:
        # Kill torchrun first, or it would restart the ranks.
        self._process.kill()
        processes.kill_remaining(self._descendants)

    def _kill_descendants(self) -> None:
        if self._process.poll() is None:
            self._descendants.update(processes.descendants(self._process.pid))
            self._process.kill()
            self._process.wait()
        processes.kill_remaining(self._descendants)

    def _on_reply(self, reply: HeartbeatReply) -> None:
        if reply.stop:
            self._stop.request("user_cancelled" if reply.stop == "cancel" else "preempted")
        if reply.seconds_left is not None:
            self._time_limit.extend(reply.seconds_left)
        if (trace := reply.profile) and self._node.is_first and trace.request > self._trace_requested:
            self._trace_requested = trace.request
            write_atomic(self._layout.profile_request, trace.model_dump_json())


def _post_finish(connect: Callable[[], ServiceClient], record: FinishRecord) -> None:
    client = connect()
    try:
        client.post_until(time.monotonic() + _FINISH_SECONDS, "finish", record.model_dump_json())
    except ServiceError as error:
        log.warning("the exit record could not be sent; the service will read the file: %s", error)
    finally:
        client.close()
