"""Starting from another job's checkpoint: it is found, and linked into the new run, whose own it then is.

A hard link shares the bytes and costs no space. From then on the source may delete its checkpoint, or be deleted
itself, and nothing has to be held back for the fork.
"""

import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, NotFoundError
from service.db.engine import Database
from service.db.models import Job
from service.jobs.repository import JobRepository
from trainyard.contract.layout import MANIFEST, CheckpointLayout, RunLayout
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.forks import incompatible_fields, parse_origin, trajectory_differences
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from trainyard.contract.wire.launch import Origin

_PARAM = "resume_from"
_MAX_FILES = 100_000


def find_origin(database: Database, spec: TrainingSpec, now: datetime) -> Origin | None:
    """The checkpoint that the spec's `resume_from` names, and how much of it the new job can take over.

    Raises:
        InvalidRequestError: there is no such job, or no such step.
        ConflictError: it has no checkpoint yet.
        InvalidSpecError: the weights would not fit.
    """
    named = parse_origin(spec.resume_from) if spec.resume_from else None
    if named is None:
        return None
    job_id, wanted = named
    with database.read() as session:
        jobs = JobRepository(session, now)
        try:
            source = jobs.get(job_id)
        except NotFoundError:
            raise InvalidRequestError(f"there is no job {job_id!r}", param=_PARAM, code="job_not_found") from None
        steps = [checkpoint.step for checkpoint in jobs.list_checkpoints(source)]
    theirs = _spec_of(source)
    if problems := incompatible_fields(theirs, spec):
        raise InvalidSpecError(problems)
    step = _chosen(source, steps, wanted)
    differing = trajectory_differences(theirs, spec)
    if not differing:
        _require_rest(source, theirs, spec, step)
    return Origin(job_id=source.id, step=step, continues=not differing, differs=tuple(differing))


def _spec_of(source: Job) -> TrainingSpec:
    try:
        return parse_spec(source.spec)
    except SpecError as error:
        raise ConflictError(f"that job's spec cannot be read any more: {error}", param=_PARAM) from None


def _chosen(source: Job, steps: list[int], wanted: int | None) -> int:
    if not steps:
        raise ConflictError(f"job {source.id} has no checkpoint to start from", param=_PARAM, code="no_checkpoint")
    if wanted is None:
        return steps[-1]
    if wanted not in steps:
        there = ", ".join(map(str, steps))
        message = f"job {source.id} has no checkpoint of step {wanted}; it has those of {there}"
        raise InvalidRequestError(message, param=_PARAM, code="checkpoint_not_found")
    return wanted


def _require_rest(source: Job, theirs: TrainingSpec, spec: TrainingSpec, step: int) -> None:
    """Raises InvalidRequestError: an exact continuation would have no step left to do."""
    total = spec.steps
    if total is None and spec.epochs == theirs.epochs and source.progress is not None:
        total = source.progress["total_steps"]
    if total is not None and step >= total:
        field = "steps" if spec.steps is not None else "epochs"
        message = f"is for {total} steps, and the checkpoint in `{_PARAM}` is of step {step}: nothing is left to do"
        raise InvalidRequestError(message, param=field)


def link_origin(source: CheckpointLayout, target: CheckpointLayout) -> None:
    """Give the run its own links to every file of the checkpoint; its manifest last. A repeated call starts over.

    Raises:
        ConflictError: the checkpoint is gone by now, or the filesystem of the runs has no hard links.
    """
    shutil.rmtree(target.root, ignore_errors=True)
    try:
        for place in _files(source.root):
            (target.root / place).parent.mkdir(parents=True, exist_ok=True)
            os.link(source.root / place, target.root / place, follow_symlinks=False)
        # Its removal begins with the manifest: if that is still there, so was all the rest.
        os.link(source.manifest, target.manifest, follow_symlinks=False)
    except FileNotFoundError:
        shutil.rmtree(target.root, ignore_errors=True)
        message = f"the checkpoint of step {source.step} has just been removed"
        raise ConflictError(message, param=_PARAM, code="checkpoint_gone") from None
    except OSError as error:
        shutil.rmtree(target.root, ignore_errors=True)
        message = f"the checkpoint cannot be linked into the new run: {error.strerror}"
        raise ConflictError(message, param=_PARAM, code="cannot_link") from None


def unlink_origin(run: RunLayout) -> None:
    """Take back what was linked for a job that was not accepted."""
    shutil.rmtree(run.origins, ignore_errors=True)
    if run.root.is_dir() and not any(run.root.iterdir()):
        run.root.rmdir()


def _files(root: Path) -> Iterator[Path]:
    """Every regular file but the manifest, relative to the folder; links are left out."""
    if root.is_symlink():
        raise FileNotFoundError(root)
    waiting, count = [root], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                place = Path(entry.path).relative_to(root)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False) and place != Path(MANIFEST):
                    count += 1
                    if count > _MAX_FILES:
                        raise OSError(0, f"it has more than {_MAX_FILES} files")
                    yield place
