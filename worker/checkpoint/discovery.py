"""Finds the checkpoint that a run starts from: the latest whose files match its manifest."""

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.contract.layout import CheckpointLayout, RunLayout, write_atomic
from trainyard.contract.wire.manifest import Manifest
from worker.checkpoint.digests import Verify, shared_verification, verify
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError

log = logging.getLogger(__name__)


@dataclass
class Discovery:
    """The checkpoints of a run, as rank 0 found them."""

    latest: Manifest | None = None
    manifests: list[Manifest] = field(default_factory=list)
    """The manifests of all complete checkpoints, oldest first."""
    skipped: dict[int, str] = field(default_factory=dict)
    """The damaged checkpoints by step, with the problem of each."""
    incomplete: list[int] = field(default_factory=list)
    """The steps of the checkpoints whose save or removal was interrupted; they were removed."""
    all_damaged: bool = False
    """Whether no checkpoint is left because all were damaged or deleted, for this or an earlier execution."""


def discover(
    run: RunLayout,
    first_execution: int = 1,
    execution: int = 1,
    *,
    known_step: int | None = None,
    verify: Verify = verify,
) -> Discovery:
    """Find the latest valid checkpoint. Set newer damaged checkpoints aside, and remove a killed run's incomplete ones.

    Args:
        first_execution: Checkpoints of earlier executions are removed: a retry started from scratch after them.
        execution: The execution that is about to start.
        known_step: The newest checkpoint that the service knows; it was complete.
        verify: Compares the files with their manifest.
    """
    result = Discovery()
    _clear_incomplete(run, known_step, result)
    for checkpoint in reversed(run.complete_checkpoints()):
        try:
            manifest = Manifest.model_validate_json(checkpoint.manifest.read_bytes())
            if manifest.execution < first_execution:
                remove(checkpoint)
                continue
            if result.latest is None:
                verify(checkpoint, manifest)
                result.latest = manifest
            result.manifests.insert(0, manifest)
        except (ValueError, OSError) as error:
            result.skipped[checkpoint.step] = str(error)
            _quarantine(checkpoint.root)
    if result.latest is not None:
        run.damage.unlink(missing_ok=True)
    elif result.skipped or known_step is not None:
        write_atomic(run.damage, json.dumps({"execution": execution}))
    result.all_damaged = _recorded_damage(run) >= first_execution
    return result


def _recorded_damage(run: RunLayout) -> int:
    """Return the last execution for which all checkpoints were damaged; 0 if there was none, 1 if it is unreadable."""
    try:
        return int(json.loads(run.damage.read_bytes())["execution"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):
        return 1


def require_valid_checkpoint(checkpoint: CheckpointLayout, ranks: Ranks) -> Manifest | None:
    """Validate the checkpoint that a fork starts from, and return its manifest on rank 0. A collective.

    Raises:
        RefusedError: On all ranks; the checkpoint is damaged.
    """
    manifest, problem = None, None
    with shared_verification(ranks) as verify_together:
        if ranks.is_rank_0:
            try:
                manifest = Manifest.model_validate_json(checkpoint.manifest.read_bytes())
                verify_together(checkpoint, manifest)
            except (ValueError, OSError) as error:
                problem = str(error)
    if ranks.from_rank_0(int(problem is not None)):
        message = f"the checkpoint that the run starts from ({checkpoint.root}) is damaged: {problem or 'see rank 0'}"
        raise RefusedError(message, "Start from another checkpoint: resume_from: <job id>:<step>.")
    return manifest


def _clear_incomplete(run: RunLayout, known_step: int | None, result: Discovery) -> None:
    """Remove checkpoint folders without a manifest. Only the current execution of a job may call this.

    The checkpoint of `known_step` had a manifest, so it is damaged and set aside, unless retention may have begun to
    remove it after a newer checkpoint. Other folders may be left from an interrupted save or removal.
    """
    complete = {checkpoint.step for checkpoint in run.complete_checkpoints()}
    for folder in sorted(run.checkpoints.glob("step-" + "[0-9]" * 10)):
        step = CheckpointLayout(folder).step
        if step in complete:
            continue
        if step == known_step and step > max(complete, default=0):
            result.skipped[step] = "its manifest is missing"
            _quarantine(folder)
        else:
            log.info("removing the incomplete checkpoint %s", folder.name)
            shutil.rmtree(folder, ignore_errors=True)
            result.incomplete.append(step)


def remove(checkpoint: CheckpointLayout) -> None:
    """Remove a checkpoint, its manifest first: an interrupted removal leaves no damaged checkpoint."""
    checkpoint.manifest.unlink(missing_ok=True)
    shutil.rmtree(checkpoint.root, ignore_errors=True)


def _quarantine(folder: Path) -> None:
    """Rename a damaged checkpoint, so that its step can be saved again and an operator can inspect it."""
    quarantined = folder.with_name(f"{folder.name}.damaged")
    shutil.rmtree(quarantined, ignore_errors=True)
    folder.rename(quarantined)
