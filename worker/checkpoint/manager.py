"""When a checkpoint is written, when it counts as one, and which ones stay."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trainyard.contract.layout import CheckpointLayout, RunLayout, write_atomic
from trainyard.contract.spec.sections import Checkpoint
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.manifest import Manifest, ManifestFile
from trainyard.contract.wire.reports import CheckpointReport
from worker.checkpoint.discovery import Discovery, discover, file_sha256, remove, require_valid_checkpoint
from worker.checkpoint.storage import CheckpointStorage, StateDict, sync_folder
from worker.core.distributed import Ranks
from worker.reporting.reporter import Reporter

log = logging.getLogger(__name__)


class CheckpointManager:
    """The engine's way to its checkpoints. Created before the reporter, whose reports say where the run began."""

    def __init__(self, run: RunLayout, launch: LaunchDocument, execution: int, ranks: Ranks) -> None:
        self._run = run
        self._launch = launch
        self._policy = launch.spec.checkpoint
        self._execution = execution
        self._ranks = ranks
        self._reporter: Reporter | None = None
        self._storage = CheckpointStorage(ranks.checkpoints, ranks.device, asynchronous=self._policy.asynchronous)
        self._found = discover(run, launch.first_execution) if ranks.first else Discovery()
        latest = self._found.latest
        own = ranks.from_first(latest.step if latest else 0)
        self._origin = launch.origin if not own else None
        self._source = run.checkpoint(own) if own else None
        if self._origin:
            self._source = run.origin(self._origin.step)
            latest = require_valid_checkpoint(self._source, ranks)
        self.weights_only = self._origin is not None and not self._origin.continues
        """What the run starts from is another job's, and only its weights are taken."""
        self.start_step = 0 if self._source is None or self.weights_only else self._source.step
        """Updates done in what the run goes on from; 0 for a fresh start."""
        self.saved_ranks = ranks.from_first(latest.world_size if latest else 0)
        self.last_step = self.start_step
        self._manifests = self._found.manifests

    def bind(self, reporter: Reporter) -> None:
        """From now on speak to this reporter; first of what was found at the start."""
        self._reporter = reporter
        for step, problem in self._found.skipped.items():
            message = f"the checkpoint of step {step} is damaged and was not used: {problem}"
            reporter.event("checkpoint_damaged", message, level="warning", data={"step": step, "problem": problem})
        if self._origin:
            taken = "its weights" if self.weights_only else "all of its state"
            message = f"begins with {taken}: the checkpoint of step {self._origin.step} of job {self._origin.job_id}"
            reporter.event("origin_loaded", message, data=self._origin.model_dump(mode="json"))

    def due(self, step: int, total_steps: int) -> bool:
        every = self._policy.every_steps
        return step == total_steps or (every is not None and step % every == 0)

    def load(self, state: StateDict) -> None:
        """Fill `state` from the checkpoint the run starts from. A collective."""
        assert self._source is not None
        self._storage.load(self._source, state)

    def save(self, step: int, state: StateDict, metrics: Mapping[str, float]) -> None:
        """Write a checkpoint, after the one before is complete. A collective; returns before it is on disk."""
        self._settle()
        checkpoint = self._run.checkpoint(step)
        kept = dict(metrics)
        self._storage.save(checkpoint, state, lambda: self._complete(checkpoint, kept))
        self.last_step = step

    def finish(self) -> None:
        """Wait for the last checkpoint.

        Raises:
            Exception: it could not be written; the run's end is not on disk.
        """
        self._storage.wait()

    def _settle(self) -> None:
        """A checkpoint that failed costs a warning: training goes on, and the next one may succeed."""
        try:
            self._storage.wait()
        except Exception as error:
            log.exception("the checkpoint of step %d could not be written", self.last_step)
            if self._reporter:
                message = f"the checkpoint of step {self.last_step} could not be written: {error}"
                self._reporter.event("checkpoint_failed", message, level="error", data={"step": self.last_step})

    def _complete(self, checkpoint: CheckpointLayout, metrics: dict[str, float]) -> None:
        """On rank 0, when all files are there: the manifest, which makes it a checkpoint; the report; the retention."""
        if not self._ranks.first:
            return
        assert self._reporter is not None
        manifest = self._describe(checkpoint, metrics)
        text = manifest.model_dump_json(indent=1).encode()
        sync_folder(checkpoint)
        # No checkpoint is ahead of its points: whoever resumes from it finds them all.
        self._reporter.flush_to_disk()
        write_atomic(checkpoint.manifest, text)
        self._manifests.append(manifest)
        removed = removable_steps(self._manifests, self._policy)
        self._reporter.checkpoint(_report(manifest, text, removed))
        for step in removed:
            remove(self._run.checkpoint(step))
        self._manifests = [manifest for manifest in self._manifests if manifest.step not in removed]
        log.info("checkpoint of step %d: %d bytes", manifest.step, manifest.size_bytes)

    def _describe(self, checkpoint: CheckpointLayout, metrics: dict[str, float]) -> Manifest:
        files = {
            path.relative_to(checkpoint.root).as_posix(): ManifestFile(
                size=path.stat().st_size, sha256=file_sha256(path)
            )
            for path in sorted(checkpoint.root.rglob("*"))
            if path.is_file()
        }
        return Manifest(
            job_id=self._launch.job_id,
            step=checkpoint.step,
            execution=self._execution,
            attempt=self._launch.attempt,
            world_size=self._ranks.world,
            strategy=self._launch.spec.strategy,
            files=files,
            metrics=metrics,
            created_at=datetime.now(UTC),
        )


def _report(manifest: Manifest, text: bytes, removed: list[int]) -> CheckpointReport:
    return CheckpointReport(
        execution=manifest.execution,
        step=manifest.step,
        size_bytes=manifest.size_bytes,
        digest=f"sha256:{hashlib.sha256(text).hexdigest()}",
        world_size=manifest.world_size,
        metrics=manifest.metrics,
        time=manifest.created_at,
        removed_steps=tuple(removed),
    )


def removable_steps(manifests: Sequence[Manifest], policy: Checkpoint) -> list[int]:
    """Pure: the steps that neither `keep_last` nor `keep_best` holds. A NaN is never the best."""
    by_step = sorted(manifests, key=lambda manifest: manifest.step)
    kept = {manifest.step for manifest in by_step[-policy.keep_last :]}
    if policy.keep_best:
        metric = policy.keep_best.metric
        sign = 1.0 if policy.keep_best.mode == "max" else -1.0
        scored = [
            (sign * value, manifest.step)
            for manifest in by_step
            if (value := manifest.metrics.get(metric)) is not None and value == value
        ]
        if scored:
            kept.add(max(scored)[1])
    return [manifest.step for manifest in by_step if manifest.step not in kept]
