"""Decides when a checkpoint is written, when it is complete, and which checkpoints are removed."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

import torch

from trainyard.contract.layout import CheckpointLayout, RunLayout, write_atomic
from trainyard.contract.spec.sections import Checkpoint
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.manifest import Manifest
from trainyard.contract.wire.reports import MAX_CHECKPOINT_METRICS, CheckpointReport
from worker.checkpoint.compatibility import CHANGED_SOURCE_HINT, changed_source, stored_dtypes
from worker.checkpoint.digests import Files, describe_files, shared_verification
from worker.checkpoint.discovery import Discovery, discover, remove, require_valid_checkpoint
from worker.checkpoint.memory_checkpoint import find_newer, open_files
from worker.checkpoint.storage import CheckpointStorage, StateDict, sync_folder
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.core.fence import RunFence
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)

_ALL_DAMAGED = (
    "all checkpoints of the run are damaged or missing, and starting again from the beginning would discard its "
    "progress"
)
_ALL_DAMAGED_HINT = (
    "Restore a checkpoint's folder (checkpoints/step-*) from a backup and retry the job, or accept the loss: "
    "trainyard retry JOB --from-scratch. Damaged folders (*.damaged) remain for inspection."
)
_REPEAT_SECONDS = 3600.0
"""Seconds until a lasting cause of failed checkpoints is reported again. A full disk may last for days."""


class SaveFailures:
    """Chooses the failures to report: the first of each cause, and then one per hour while the cause lasts."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cause: tuple[str, int | None] | None = None
        self._reported = 0.0
        self._unreported = 0

    def add(self, step: int, error: BaseException) -> str | None:
        """Return the message for an event; None if the last event has the same cause and is less than an hour old."""
        origin = error.__cause__ or error
        cause = (type(origin).__name__, getattr(origin, "errno", None))
        if cause == self._cause and self._now() - self._reported < _REPEAT_SECONDS:
            self._unreported += 1
            return None
        count, self._unreported = self._unreported, 0
        self._cause, self._reported = cause, self._now()
        message = f"the checkpoint of step {step} could not be written: {error}"
        return f"{message} ({count} more since the last such event)" if count else message

    def reset(self) -> None:
        """Forget the cause: a checkpoint was written."""
        self._cause, self._unreported = None, 0


class CheckpointManager:
    """The checkpoints of a run, for the engine. Created before the reporter, whose reports carry the start step.

    Raises:
        SupersededError: On rank 0, when another attempt has taken over the run directory. The launcher then ends the
            ranks.
    """

    def __init__(self, run: RunLayout, launch: LaunchDocument, execution: int, ranks: Ranks) -> None:
        self._run = run
        self._launch = launch
        self._policy = launch.spec.checkpoint
        self._execution = execution
        self._ranks = ranks
        self._fence = RunFence(run, launch.attempt_id)
        if ranks.is_rank_0:
            # Finding the latest checkpoint also removes incomplete checkpoints.
            self._fence.check()
        self._reporter: Reporter | None = None
        self._storage = CheckpointStorage(ranks.checkpoints, ranks.device, asynchronous=self._policy.asynchronous)
        self._discovery = Discovery()
        with shared_verification(ranks) as verify:
            if ranks.is_rank_0:
                self._discovery = discover(
                    run, launch.first_execution, execution, known_step=launch.checkpoint_step, verify=verify
                )
        self._all_damaged = bool(ranks.from_rank_0(int(self._discovery.all_damaged)))
        latest = self._discovery.latest
        own_step = ranks.from_rank_0(latest.step if latest else 0)
        self.memory_files = open_files(os.environ, ranks) if self._policy.memory_steps else []
        """The files of this rank's memory checkpoints; none if a rank has none."""
        has_memory = self.memory_files and not self._all_damaged
        self._in_memory = find_newer(own_step, ranks, self.memory_files) if has_memory else None
        self._origin = launch.origin if not own_step and not self._in_memory else None
        self._source = run.checkpoint(own_step) if own_step else None
        if self._origin:
            self._source = run.origin(self._origin.step)
            latest = require_valid_checkpoint(self._source, ranks)
        self.weights_only = self._origin is not None and not self._origin.continues
        """Whether the run starts from another job's checkpoint and loads only its weights."""
        self.last_step = 0 if self._source is None or self.weights_only else self._source.step
        """The step of the newest checkpoint on disk; 0 if the run has none."""
        self.start_step = self._in_memory.step if self._in_memory else self.last_step
        """The step of the checkpoint from which the run resumes; 0 for a fresh start."""
        self.is_fork = self._origin is not None
        """Whether the run starts from another job's checkpoint."""
        saved_ranks = ranks.world if self._in_memory else latest.world_size if latest else 0
        self.saved_ranks = ranks.from_rank_0(saved_ranks)
        self._saved_sources = self._in_memory.sources if self._in_memory else latest.sources if latest else {}
        self._sources: Mapping[str, str] = {}
        self._classes: Sequence[str] = ()
        self._manifests = self._discovery.manifests
        self._failures = SaveFailures()

    def bind(self, reporter: Reporter) -> None:
        """Report to this reporter from now on, first the events of the start.

        Raises:
            RefusedError: On all ranks; all checkpoints are damaged, and only a user may decide to start again.
        """
        self._reporter = reporter
        for step, problem in self._discovery.skipped.items():
            message = f"the checkpoint of step {step} is damaged and was skipped: {problem}"
            reporter.event("checkpoint_damaged", message, level="warning", data={"step": step, "problem": problem})
        for step in self._discovery.incomplete:
            message = f"the incomplete checkpoint of step {step} was removed: its save or removal was interrupted"
            reporter.event("checkpoint_incomplete", message, data={"step": step})
        if self._all_damaged:
            reporter.flush_to_disk()
            raise RefusedError(_ALL_DAMAGED, _ALL_DAMAGED_HINT)
        if self._origin:
            loaded = "weights" if self.weights_only else "full state"
            message = f"starts with the {loaded} of checkpoint {self._origin.step} of job {self._origin.job_id}"
            reporter.event("origin_loaded", message, data=self._origin.model_dump(mode="json"))
        if self._in_memory:
            on_disk = f"the newest on disk is of step {self.last_step}" if self.last_step else "none is on disk yet"
            message = f"resumes from the memory checkpoint of step {self.start_step}; {on_disk}"
            data = {"step": self.start_step, "checkpoint_step": self.last_step}
            reporter.event("memory_checkpoint_loaded", message, data=data)

    def bind_sources(self, sources: Mapping[str, str], classes: Sequence[str] = ()) -> None:
        """Record the digests of the run's sources, such as its data, and the model's output names; both count on rank
        0. A collective of all ranks.

        Raises:
            RefusedError: On all ranks; the digests differ from the digests in the checkpoint that the run continues.
        """
        self._sources, self._classes = sources, classes
        saved = self._saved_sources if self.start_step else {}
        changed = self._ranks.broadcast(changed_source(saved, sources, self._launch.spec))
        if changed is not None:
            raise RefusedError(f"{changed} since the checkpoint of step {self.start_step}", CHANGED_SOURCE_HINT)

    @property
    def sources(self) -> Mapping[str, str]:
        """The digests of the run's sources; on rank 0, once they are bound."""
        return self._sources

    @property
    def initial_weights(self) -> str:
        """The other job's checkpoint of which the run's first execution loaded only the weights; else empty."""
        origin = self._launch.origin
        return f"{origin.job_id}:{origin.step}" if origin and not origin.continues else ""

    def due(self, step: int, total_steps: int) -> bool:
        every = self._policy.every_steps
        return step == total_steps or (every is not None and step % every == 0)

    def stored_dtypes(self) -> Mapping[str, torch.dtype]:
        """Return the type of every tensor of the checkpoint the run starts from, by its name."""
        if self._in_memory:
            return self._in_memory.dtypes()
        assert self._source is not None
        return stored_dtypes(self._source)

    def load(self, state: StateDict) -> None:
        """Fill `state` from the checkpoint the run starts from. A collective."""
        if self._in_memory:
            self._in_memory.load(state)
            self._in_memory = None
            return
        assert self._source is not None
        self._storage.load(self._source, state)

    def save(self, step: int, state: StateDict, metrics: Mapping[str, float]) -> None:
        """Write a checkpoint once the previous checkpoint is complete. A collective; returns before it is on disk, and
        before `state` is copied: see `wait_staged`.

        Args:
            state: As returned by `TrainingState.capture`.
            metrics: Values that the manifest records and `keep_best` compares.
        """
        self._await_previous()
        checkpoint = self._run.checkpoint(step)
        recorded, since = dict(metrics), time.monotonic()
        self._storage.save(checkpoint, state, lambda: self._complete(checkpoint, recorded, since))
        self.last_step = step

    def wait_staged(self) -> None:
        """Wait until the state of the last save is copied. To be called before any tensor of it changes."""
        self._storage.wait_staged()

    def finish(self) -> None:
        """Wait for the last checkpoint.

        Raises:
            Exception: It could not be written, so the end of the run is not on disk.
        """
        self._storage.wait()

    def _await_previous(self) -> None:
        """Wait for the previous checkpoint. If it failed, report an event, and go on."""
        try:
            self._storage.wait()
        except Exception as error:
            log.exception("the checkpoint of step %d could not be written", self.last_step)
            message = self._failures.add(self.last_step, error)
            if self._reporter and message is not None:
                self._reporter.event("checkpoint_failed", message, level="error", data={"step": self.last_step})
        else:
            self._failures.reset()

    def _complete(self, checkpoint: CheckpointLayout, metrics: dict[str, float], since: float) -> None:
        """Once all files are on disk: compute their digests. On rank 0 write the manifest, report, and remove old
        checkpoints.

        Args:
            since: When the save began, by the monotonic clock.
        """
        files = describe_files(checkpoint, self._ranks)
        if not self._ranks.is_rank_0:
            return
        assert self._reporter is not None
        manifest = self._build_manifest(checkpoint, files, metrics)
        text = manifest.model_dump_json(indent=1).encode()
        sync_folder(checkpoint)
        # The points up to this step are durable before the checkpoint is: a run that resumes from it has them all.
        self._reporter.flush_to_disk()
        # The calls above may wait for minutes, such as for a filesystem that does not answer.
        self._fence.check()
        write_atomic(checkpoint.manifest, text)
        seconds = time.monotonic() - since
        self._manifests.append(manifest)
        removed = removable_steps(self._manifests, self._policy)
        self._reporter.checkpoint(_report(manifest, text, removed, seconds))
        if removed:
            self._fence.check()
        for step in removed:
            remove(self._run.checkpoint(step))
        self._manifests = [manifest for manifest in self._manifests if manifest.step not in removed]
        log.info("checkpoint of step %d: %d bytes in %.1f s", manifest.step, manifest.size_bytes, seconds)

    def _build_manifest(self, checkpoint: CheckpointLayout, files: Files, metrics: dict[str, float]) -> Manifest:
        return Manifest(
            job_id=self._launch.job_id,
            step=checkpoint.step,
            execution=self._execution,
            attempt=self._launch.attempt,
            world_size=self._ranks.world,
            strategy=self._launch.spec.strategy,
            files=dict(files),
            metrics=metrics,
            sources=dict(self._sources),
            classes=tuple(self._classes),
            created_at=datetime.now(UTC),
        )


def _report(manifest: Manifest, text: bytes, removed: list[int], seconds: float) -> CheckpointReport:
    return CheckpointReport(
        execution=manifest.execution,
        step=manifest.step,
        size_bytes=manifest.size_bytes,
        digest=f"sha256:{hashlib.sha256(text).hexdigest()}",
        world_size=manifest.world_size,
        metrics=dict(islice(manifest.metrics.items(), MAX_CHECKPOINT_METRICS)),
        time=manifest.created_at,
        seconds=round(seconds, 3),
        removed_steps=tuple(removed),
    )


def removable_steps(manifests: Sequence[Manifest], policy: Checkpoint) -> list[int]:
    """Return the steps that neither `keep_last` nor `keep_best` retains. A NaN is never the best."""
    by_step = sorted(manifests, key=lambda manifest: manifest.step)
    retained = {manifest.step for manifest in by_step[-policy.keep_last :]}
    if policy.keep_best:
        metric = policy.keep_best.metric
        sign = 1.0 if policy.keep_best.mode == "max" else -1.0
        scored = [
            (sign * value, manifest.step)
            for manifest in by_step
            if (value := manifest.metrics.get(metric)) is not None and value == value
        ]
        if scored:
            retained.add(max(scored)[1])
    return [manifest.step for manifest in by_step if manifest.step not in retained]
