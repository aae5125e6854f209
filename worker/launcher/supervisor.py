"""Once per node: claim the attempt, run torchrun, stay in touch with the service, and say how it ended. No torch."""

import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from trainyard.contract.layout import AttemptLayout, write_atomic
from trainyard.contract.spec.training_spec import LOOP_TASKS
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import Claim, ExitReason, Failure, FinishRecord, HeartbeatReply
from worker.core import processes
from worker.launcher import exit_record as verdict
from worker.launcher import presence, torchrun, watchdog
from worker.launcher import script_job as script
from worker.launcher.claim import Claimed, claim_attempt
from worker.launcher.code import prepare_code
from worker.launcher.heartbeat import HeartbeatThread
from worker.launcher.logs import LogShipper, LogStream
from worker.launcher.rendezvous import Node, Rendezvous, await_rendezvous, publish, this_node
from worker.launcher.script_job import ScriptReports
from worker.launcher.stop_signals import (
    BLIND_SECONDS,
    CANCEL_GRACE_SECONDS,
    Signals,
    StopRequest,
    SuspendDetector,
    TimeLimit,
)
from worker.reporting.service_client import ServiceClient, ServiceError

log = logging.getLogger("worker.launcher.supervisor")

_POLL_SECONDS = 0.2
_LAST_LOGS_SECONDS = 5.0
_LAST_REPORTS_SECONDS = 3.0
_FINISH_SECONDS = 10.0
_STACKS_SECONDS = 1.0
"""A handler in C writes them at once; the disk may be far."""
_NODES_SECONDS = 5.0
"""Other nodes see node 0's word late on a network filesystem."""


def run(attempt_folder: str) -> None:
    """Run one attempt on this node to its end; how it went is in the finish record.

    Raises:
        SystemExit: this node, and not the first, cannot run what is asked.
    """
    signals = Signals()
    signals.install()
    layout = AttemptLayout(Path(attempt_folder).absolute())
    launch = LaunchDocument.model_validate_json(layout.launch.read_bytes())
    limit = TimeLimit.of(launch, os.environ, time.time())
    connect = partial(ServiceClient, launch.service_url, launch.attempt_id, layout.token.read_text().strip())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("worker").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    node = this_node(launch, os.environ)
    claimed = _claim(layout, launch, connect) if node.first else None
    execution = claimed.execution if claimed else None
    if execution is not None:
        refused = prepare_code(layout, launch, execution) or _refusal(layout, launch, execution)
        if refused:
            # The other nodes hear that the attempt is not to be run, and wait for nobody.
            execution = None
            _post_finish(connect, refused)
    rendezvous = publish(layout, node, execution) if node.first else await_rendezvous(layout, node)
    if rendezvous is None:
        return
    _log_to(layout.node_log(node.index))
    log.info("attempt %d of job %s, execution %d", launch.attempt, launch.job_id, rendezvous.execution)
    if not node.first and (refused := _refusal(layout, launch, rendezvous.execution)):
        _post_finish(connect, refused)
        # The other nodes wait for this one already: Slurm ends them, with one task that fails (--kill-on-bad-exit).
        sys.exit(1)
    presence.mark_alive(layout, node)
    try:
        process = torchrun.start(layout, launch, node, rendezvous)
    except OSError as error:
        log.exception("torchrun could not be started")
        _post_finish(connect, verdict.torchrun_not_started(layout, rendezvous.execution, error))
        return
    late_claim = claimed.claim if claimed and not claimed.known_to_service else None
    Supervisor(layout, launch, node, rendezvous, process, connect, signals, limit, late_claim).run()


def _claim(layout: AttemptLayout, launch: LaunchDocument, connect: "partial[ServiceClient]") -> Claimed | None:
    client = connect()
    try:
        return claim_attempt(layout, launch, client)
    finally:
        client.close()


def _refusal(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> FinishRecord | None:
    """Where this node cannot run what is asked, the finish record that says so, already written."""
    why = torchrun.refusal(launch)
    if why is None:
        return None
    log.error("%s", why)
    return verdict.refused(layout, execution, why)


class Supervisor:
    """The one loop around torchrun."""

    def __init__(
        self,
        layout: AttemptLayout,
        launch: LaunchDocument,
        node: Node,
        rendezvous: Rendezvous,
        process: subprocess.Popen[bytes],
        connect: "partial[ServiceClient]",
        signals: Signals,
        limit: TimeLimit,
        late_claim: Claim | None,
    ) -> None:
        self._layout = layout
        self._node = node
        self._first = rendezvous.execution
        self._connect = connect
        self._signals = signals
        self._limit = limit
        self._standstill = SuspendDetector()
        self._stop = StopRequest(layout)
        self._told = False
        self._profiled = 0
        """The number of the last trace that was asked for."""
        self._killed_for: ExitReason | None = None
        self._failure: Failure | None = None
        world = node.count * launch.processes_per_node
        minutes = launch.spec.health.stall_timeout_minutes
        # Which ranks of a script ever show their progress is the script's affair.
        expected = world if launch.spec.task in LOOP_TASKS else 0
        execution = partial(verdict.last_execution, layout, self._first)
        self._watchdog = watchdog.Watchdog(layout, expected, minutes * 60.0, execution) if minutes is not None else None
        self._known: set[tuple[int, int]] = set()
        self._launch = launch
        self._process = process
        self._heart = HeartbeatThread(
            launch.heartbeat_seconds,
            connect,
            execution,
            self._on_reply,
            late_claim=late_claim,
            node=node.index,
        )
        streams = [LogStream("launch", layout.launch_log)] if node.first else []
        if node.count == 1:
            streams += [LogStream(str(rank), layout.rank_log(rank)) for rank in range(launch.processes_per_node)]
        scripted = launch.spec.task == "script" and node.first
        self._reports = ScriptReports(layout, self._first, connect) if scripted else None
        self._shipper = LogShipper(streams, connect, limit=launch.log_bytes)

    def run(self) -> None:
        """Until torchrun has ended and the service, if it can be reached, knows how."""
        try:
            self._heart.start()
            self._shipper.start()
            self._standstill.start()
            self._supervise()
        finally:
            self._standstill.close()
            self._leave_nothing_behind()
        presence.mark_exited(self._layout, self._node)
        if self._node.first:
            self._conclude()
        else:
            self._heart.close()
            self._shipper.close(_LAST_LOGS_SECONDS)

    def _conclude(self) -> None:
        """Node 0 speaks for all: torchrun ends there only when it has ended on every node."""
        if self._reports:
            self._reports.close(_LAST_REPORTS_SECONDS)
            if not self._killed_for:
                script.finalize_script(self._layout, self._first, self._process.returncode, self._stop.reason)
        record = verdict.finalize(
            self._layout,
            self._first,
            self._process.returncode,
            killed_for=self._killed_for,
            failure=self._failure,
            spec=self._launch.spec,
            lost_nodes=partial(presence.await_others, self._layout, self._node),
        )
        failure = f": {record.failure.message}" if record.failure else ""
        log.info("ended: %s after %d steps%s", record.reason, record.step, failure)
        self._heart.close()
        self._shipper.close(_LAST_LOGS_SECONDS)
        _post_finish(self._connect, record)

    def _supervise(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                self._process.wait(_POLL_SECONDS)
                return
            except subprocess.TimeoutExpired:
                pass
            looked, since = time.monotonic(), looked
            self._account_for(looked - since)
            self._known.update(processes.descendants(self._process.pid))
            if self._reports:
                self._reports.follow()
            self._follow_ranks()
            self._heed_wishes()
            self._enforce()

    def _account_for(self, seconds: float) -> None:
        """So long ago the loop, which looks several times a second, last did."""
        if suspended := self._standstill.take():
            # `scontrol suspend` and gang scheduling stop every process of a job, this one too.
            log.warning("stood still for %.0f s: the job was suspended", suspended)
            self._limit.add_suspension(suspended)
        if self._watchdog and seconds > BLIND_SECONDS:
            # Suspended, or waiting for a disk: what could not be seen is no sign of a stall.
            self._watchdog.add_suspension(seconds)

    def _follow_ranks(self) -> None:
        """Which ranks a node has is decided by each rendezvous: several nodes ship the logs of those they see."""
        if self._node.count == 1:
            return
        for pid in processes.children(self._process.pid):
            rank = processes.variable(pid, "RANK")
            if rank is not None:
                self._shipper.add(LogStream(rank, self._layout.rank_log(int(rank))))

    def _heed_wishes(self) -> None:
        warned = self._signals.warnings and not self._limit.explains_a_warning
        if self._limit.near:
            self._stop.ask("time_limit")
        elif (self._signals.seen or warned) and self._stop.ask("preempted"):
            # A cancelled job gets a signal too; the service knows which it was.
            self._heart.send_now()
        if self._stop.reason and not self._told:
            self._told = True
            # Ranks that have no handler yet ignore it, and find the file when they have.
            ranks = processes.children(self._process.pid)
            if torchrun.wrapped(self._launch):
                ranks = [pid for pid, _ in processes.descendants(self._process.pid)]
            processes.send(ranks, signal.SIGUSR2)

    def _enforce(self) -> None:
        since = self._stop.since
        too_long = since is not None and time.monotonic() - since > CANCEL_GRACE_SECONDS
        if self._limit.passed:
            self._kill("time_limit")
        elif self._stop.reason == "user_cancelled" and too_long:
            self._kill("user_cancelled")
        elif self._watchdog:
            self._watch(self._watchdog)

    def _watch(self, dog: watchdog.Watchdog) -> None:
        """Node 0 decides that the run stands still; the others find its word. Each has its own ranks write stacks."""
        if not self._node.first:
            if self._layout.stalled.exists():
                self._write_stacks()
                self._kill("stalled")
            return
        stall = dog.look()
        if stall is None:
            return
        log.error("%s", stall.message)
        if self._node.count > 1:
            watchdog.publish(self._layout, stall)
        logs = [self._layout.rank_log(rank) for rank in stall.behind[:1]]
        ends = [watchdog.size_of(path) for path in logs]
        self._write_stacks()
        if self._node.count > 1:
            time.sleep(_NODES_SECONDS)
        stack = "".join(map(watchdog.stack_after, logs, ends))
        self._failure = watchdog.to_failure(stall, stack)
        self._kill("stalled")

    def _write_stacks(self) -> None:
        processes.send([pid for pid, _ in processes.descendants(self._process.pid)], watchdog.STACKS)
        time.sleep(_STACKS_SECONDS)

    def _kill(self, reason: ExitReason) -> None:
        log.warning("the ranks did not stop in time (%s): they are killed", reason)
        self._killed_for = reason
        # torchrun first, or it would start the ranks again.
        self._process.kill()
        processes.kill_remaining(self._known)

    def _leave_nothing_behind(self) -> None:
        if self._process.poll() is None:
            self._known.update(processes.descendants(self._process.pid))
            self._process.kill()
            self._process.wait()
        processes.kill_remaining(self._known)

    def _on_reply(self, reply: HeartbeatReply) -> None:
        if reply.stop:
            self._stop.ask("user_cancelled" if reply.stop == "cancel" else "preempted")
        wanted = reply.profile
        if wanted and self._node.first and wanted.request > self._profiled:
            self._profiled = wanted.request
            write_atomic(self._layout.profile_request, wanted.model_dump_json())


def _post_finish(connect: "partial[ServiceClient]", record: FinishRecord) -> None:
    client = connect()
    try:
        client.post_until(time.monotonic() + _FINISH_SECONDS, "finish", record.model_dump_json())
    except ServiceError as error:
        log.warning("the service was not told how it ended; it will read the finish record: %s", error)
    finally:
        client.close()


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("worker").addHandler(handler)
