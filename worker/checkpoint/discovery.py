"""Which checkpoint a run starts from: the latest whose every byte is what its manifest says."""

import hashlib
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.contract.layout import CheckpointLayout, RunLayout
from trainyard.contract.wire.manifest import Manifest
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError

log = logging.getLogger(__name__)

_BLOCK = 4 * 2**20


@dataclass
class Discovery:
    """What was found, by the one rank that looked."""

    latest: Manifest | None = None
    manifests: list[Manifest] = field(default_factory=list)
    """Of all complete checkpoints, oldest first."""
    skipped: dict[int, str] = field(default_factory=dict)
    """Steps of damaged checkpoints, and what is wrong with each."""


def discover(run: RunLayout, first_execution: int = 1) -> Discovery:
    """Find the latest valid checkpoint; set damaged newer ones aside and remove what a killed run left half-written.

    Args:
        first_execution: checkpoints of lower ones are from before a retry from scratch, and removed too.
    """
    remove_incomplete(run)
    found = Discovery()
    for checkpoint in reversed(run.complete_checkpoints()):
        try:
            manifest = Manifest.model_validate_json(checkpoint.manifest.read_bytes())
            if manifest.execution < first_execution:
                remove(checkpoint)
                continue
            if found.latest is None:
                verify(checkpoint, manifest)
                found.latest = manifest
            found.manifests.insert(0, manifest)
        except (ValueError, OSError) as error:
            found.skipped[checkpoint.step] = str(error)
            _set_aside(checkpoint.root)
    return found


def verify(checkpoint: CheckpointLayout, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        ValueError: naming the first file that differs.
    """
    for name, expected in manifest.files.items():
        path = checkpoint.root / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != expected.size:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {expected.size}")
        if file_sha256(path) != expected.sha256:
            raise ValueError(f"{name} does not have its digest")


def require_valid_checkpoint(checkpoint: CheckpointLayout, ranks: Ranks) -> Manifest | None:
    """The manifest of a checkpoint that the run cannot do without, on the first rank, which looks at every byte.

    Raises:
        RefusedError: on all ranks; it is not whole.
    """
    manifest, problem = None, None
    if ranks.first:
        try:
            manifest = Manifest.model_validate_json(checkpoint.manifest.read_bytes())
            verify(checkpoint, manifest)
        except (ValueError, OSError) as error:
            problem = str(error)
    if ranks.from_first(int(problem is not None)):
        message = f"the checkpoint that the run starts from ({checkpoint.root}) is damaged: {problem or 'see rank 0'}"
        raise RefusedError(message, "Start from another one: resume_from: <job id>:<step>.")
    return manifest


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def remove_incomplete(run: RunLayout) -> None:
    """Folders without a manifest. Only the one execution of a job may call this."""
    complete = {checkpoint.root for checkpoint in run.complete_checkpoints()}
    for folder in run.checkpoints.glob("step-" + "[0-9]" * 10):
        if folder not in complete:
            log.info("removing the incomplete checkpoint %s", folder.name)
            shutil.rmtree(folder, ignore_errors=True)


def remove(checkpoint: CheckpointLayout) -> None:
    """The manifest first: a removal cut short leaves no checkpoint, rather than a damaged one."""
    checkpoint.manifest.unlink(missing_ok=True)
    shutil.rmtree(checkpoint.root, ignore_errors=True)


def _set_aside(folder: Path) -> None:
    """Out of the way of a new checkpoint of that step, but there for whoever wants to know what happened."""
    aside = folder.with_name(f"{folder.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
