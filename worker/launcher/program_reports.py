"""Reports of a `script` job's program: its trackers' listener, its event files' follower, and the spools' senders."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.reports import EventLevel, Failure, Point
from worker.launcher.exit_record import last_execution
from worker.launcher.nodes import AttemptContext
from worker.launcher.rank_meeting import EVENT, RankMeeting
from worker.launcher.spool_follower import SpoolFollower
from worker.launcher.unused import GPUS_EVENT, Unused, describe_gpus
from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.event_claims import EventClaims
from worker.trackers.event_folders import log_folders
from worker.trackers.event_remainder import EventRemainder
from worker.trackers.journal import Journal
from worker.trackers.listener import REFUSED, TrackerListener
from worker.trackers.mlflow import MlflowApi
from worker.trackers.tensorboard import TRACKER, TensorBoardFollower
from worker.trackers.tracker_requests import TrackerRequest
from worker.trackers.variables import LISTENER_SECRET, LISTENER_URL
from worker.trackers.wandb import WandbApi
from worker.trackers.wandb_remainder import NotedFiles, RunFileRemainder

log = logging.getLogger(__name__)

_LAST_EVENTS_SECONDS = 10.0
"""How long the rest of the event files may be read after the program's end."""


class ProgramReports:
    """Receives the reports of this node's program and sends them. The listener's port is bound at construction."""

    def __init__(self, context: AttemptContext, first: int, variables: Mapping[str, str]) -> None:
        """
        Args:
            context: The attempt. Node 0 also sends the reports that `trainyard.script` appends to the spool.
            first: The first execution of this launcher.
            variables: The variables that the ranks get in addition to the launcher's environment.
        """
        layout, node = context.layout, context.node
        self._layout = layout
        self._first = first
        self._execution = 0
        self._journal = Journal(layout, node.index)
        run = RunLayout(layout.root.parent.parent)
        self._event_files = TensorBoardFollower(
            self._journal,
            ArtifactFolder(run.artifacts / TRACKER),
            log_folders(layout.work, run.checkpoints, {**os.environ, **variables}),
            EventClaims(layout, node.index, shared=node.count > 1),
            first,
            remainder=EventRemainder.find(layout) if node.is_first else None,
        )
        self._mlflow = MlflowApi(self._journal, ArtifactFolder(run.artifacts / "mlflow"))
        self._wandb = WandbApi(
            self._journal, ArtifactFolder(run.artifacts / "wandb"), self._address, NotedFiles(layout, node.index)
        )
        self._remainder = RunFileRemainder.find(layout) if node.is_first else None
        self._listener = TrackerListener(self._handle, self._state_refusal)
        self._unused = Unused(layout, context.launch.spec, self._warn)
        self._describe_gpus = partial(describe_gpus, node=node.index, nodes=node.count)
        self._meeting = RankMeeting.of(context.launch, node, partial(self._unused.report, EVENT))
        self._spools = [SpoolFollower(layout, context.connect, node.index)]
        if node.is_first:
            self._spools.append(SpoolFollower(layout, context.connect, None))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the ranks from which `worker.rank` makes the variables of each tracker."""
        return {LISTENER_URL: self._listener.url, LISTENER_SECRET: self._listener.secret}

    def _address(self) -> tuple[str, str]:
        return self._listener.url, self._listener.secret

    def _state_refusal(self) -> None:
        """State that a program used another key. A key that another account of the node tries looks the same."""
        self._journal.state_once(max(self._execution, self._first), "tracker_key", REFUSED)

    def _handle(self, request: TrackerRequest) -> dict[str, Any] | Path:
        api = self._wandb if self._wandb.serves(request.path) else self._mlflow
        return api.handle(request)

    def _warn(self, event: str, message: str) -> None:
        try:
            self._journal.warn(max(self._execution, self._first), event, message)
        except OSError as error:
            log.warning("%s (an event with it cannot be written: %s)", message, error)

    def event(self, execution: int, type_: str, level: EventLevel, message: str, data: dict[str, Any]) -> None:
        """Add an event to the job's history.

        Raises:
            OSError: It could not be written.
        """
        self._journal.event(execution, type_, level, message, data)

    @property
    def logged(self) -> int:
        """The number of points that the program's trackers have logged."""
        return self._journal.logged

    @property
    def failure(self) -> Failure | None:
        """Why the job ends although its program runs; None if it does not."""
        return self._unused.failure

    def state_unused_gpus(self, unused: list[int], count: int) -> None:
        """State that no process has opened these GPUs of the node, which has `count`."""
        self._unused.report(GPUS_EVENT, self._describe_gpus(unused, count))

    def append(self, execution: int, points: Sequence[Point]) -> None:
        """Append points that no tracker reported; they are sent with the program's points.

        Raises:
            OSError: They could not be written.
        """
        self._journal.add_points(execution, points)

    def start(self) -> None:
        """Start to serve. Called after torchrun was started, since torchrun is forked from this process."""
        self._listener.start()
        self._event_files.start()
        if self._remainder:
            threading.Thread(target=self._add_unread, args=[self._remainder], name="run-files", daemon=True).start()

    def follow(self) -> None:
        """Notice an in-place restart and new records. Called periodically."""
        execution = last_execution(self._layout, self._first)
        self._event_files.begin(execution)
        if self._meeting:
            self._meeting.poll()
        self._read_run_files(execution)
        for spool in self._spools:
            if execution != self._execution:
                spool.begin(execution)
            spool.wake()
        self._execution = execution

    def _read_run_files(self, running: int) -> None:
        """Store the reports in W&B's files, and end the runs of all executions but the running one."""
        try:
            self._wandb.read_files()
            self._wandb.end_runs(running)
            self._mlflow.end_runs(running)
        except OSError as error:
            log.warning("what the program reported cannot be stored: %s", error)

    def _add_unread(self, remainder: RunFileRemainder) -> None:
        try:
            count = self._journal.add_unread(self._first, "wandb", remainder.values)
        except OSError as error:
            log.warning("run files of the attempt before cannot be read or stored: %s", error)
            return
        if count:
            log.info("%d points of W&B are added that the attempt before had not read", count)

    def close(self, timeout: float) -> None:
        """Stop serving, and send the rest of each spool for about `timeout` seconds at most."""
        self._listener.close()
        if self._meeting:
            self._meeting.close()
        self._read_run_files(0)
        self.follow()
        self._event_files.close(_LAST_EVENTS_SECONDS)
        self._journal.close()
        for spool in self._spools:
            spool.close(timeout)
