"""Forks: finding another job's checkpoint and linking it into the new run directory.

Hard links share the bytes and use no space. The source may then delete its checkpoint, or be deleted itself, without
any effect on the fork.
"""

from datetime import datetime

from service.as_owner.accounts import AccountError
from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, NotFoundError
from service.db.engine import Database
from service.db.models import Job
from service.jobs.dependencies import is_met
from service.jobs.repository import JobRepository
from service.run_files.files import RunFiles
from trainyard.contract.layout import RunLayout
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.spec.forks import (
    adjusted_differences,
    fixed_differences,
    incompatible_fields,
    layout_differences,
    parse_origin,
)
from trainyard.contract.spec.prerequisites import prerequisites_of
from trainyard.contract.spec.stored_spec import parse_stored_spec
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import Origin

_PARAM = "resume_from"
_WEIGHTS_REMEDY = "set `resume: weights` to start at step 1 from its weights"


def find_origin(database: Database, spec: TrainingSpec, now: datetime) -> Origin | None:
    """Return the checkpoint that `resume_from` names, and how the job continues it; None without it.

    Raises:
        InvalidRequestError: the job or the checkpoint does not exist.
        ConflictError: the job has no checkpoint yet.
        InvalidSpecError: the checkpoint's weights, or with `resume: state` its state, do not fit the spec.
    """
    reference = parse_origin(spec.resume_from) if spec.resume_from else None
    if reference is None:
        return None
    job_id, requested_step = reference
    with database.read() as session:
        jobs = JobRepository(session, now)
        try:
            source = jobs.get(job_id)
        except NotFoundError:
            raise InvalidRequestError(f"there is no job {job_id!r}", param=_PARAM, code="job_not_found") from None
        steps = jobs.checkpoint_steps(source)
    if requested_step is None:
        _require_end(source, spec)
    source_spec = _spec_of(source)
    if problems := incompatible_fields(source_spec, spec):
        raise InvalidSpecError(problems)
    step = _select_step(source, steps, requested_step)
    fixed, adjusted = fixed_differences(source_spec, spec), adjusted_differences(source_spec, spec)
    if spec.resume == "weights":
        return Origin(job_id=source.id, step=step, continues=False, differs=tuple(fixed + adjusted))
    if fixed:
        message = f"differs from that of job {source.id}, whose training cannot continue with it; {_WEIGHTS_REMEDY}"
        raise InvalidSpecError([Problem(param=name, message=message) for name in fixed])
    _require_remaining_steps(source, source_spec, spec, step)
    layout = tuple(layout_differences(source_spec, spec))
    return Origin(job_id=source.id, step=step, continues=True, differs=tuple(adjusted), layout_differs=layout)


def _require_end(source: Job, spec: TrainingSpec) -> None:
    """Raises InvalidSpecError: the job is to start after the source has ended, whose newest checkpoint is another."""
    if any(one.job_id == source.id and not is_met(one, source.status) for one in prerequisites_of(spec.after)):
        message = (
            f"names job {source.id}, which has status {source.status}; a new job starts from a checkpoint that exists "
            f"at its submission. Give the step, as in {source.id}:100, or submit this job when the other one has ended"
        )
        raise InvalidSpecError([Problem(param=_PARAM, message=message)])


def _spec_of(source: Job) -> TrainingSpec:
    try:
        return parse_stored_spec(source.spec)
    except SpecError as error:
        raise ConflictError(
            f"the spec of job {source.id} is not valid in this release: {error}", param=_PARAM
        ) from None


def _select_step(source: Job, steps: list[int], requested: int | None) -> int:
    if not steps:
        raise ConflictError(f"job {source.id} has no checkpoint to start from", param=_PARAM, code="no_checkpoint")
    if requested is None:
        return steps[-1]
    if requested not in steps:
        available = ", ".join(map(str, steps))
        message = f"job {source.id} has no checkpoint of step {requested}; available steps: {available}"
        raise InvalidRequestError(message, param=_PARAM, code="checkpoint_not_found")
    return requested


def _require_remaining_steps(source: Job, source_spec: TrainingSpec, spec: TrainingSpec, step: int) -> None:
    """Raises InvalidRequestError: a continuation would have no step left to run."""
    total = spec.steps
    if total is None and spec.epochs == source_spec.epochs and source.progress is not None:
        total = source.progress["total_steps"]
    if total is not None and step >= total:
        field = "steps" if spec.steps is not None else "epochs"
        message = f"ends at step {total}, and the checkpoint in `{_PARAM}` is of step {step}: no steps remain"
        raise InvalidRequestError(f"{message}; {_WEIGHTS_REMEDY}", param=field)


def link_origin(run_files: RunFiles, origin: Origin, job_id: str, uid: int | None) -> None:
    """Link the checkpoint from which a job starts into the run of the job. A repeated call starts again.

    Args:
        uid: The Unix account of the new job; None: the service's account.

    Raises:
        ConflictError: the checkpoint was removed, belongs to another account, or cannot be linked.
    """
    source = RunLayout(run_files.runs / origin.job_id).checkpoint(origin.step)
    try:
        run_files.link(uid, job_id, source.root, RunLayout(run_files.runs / job_id).origin(origin.step).root)
    except FileNotFoundError:
        message = f"the checkpoint of step {source.step} has just been removed"
        raise ConflictError(message, param=_PARAM, code="checkpoint_gone") from None
    except (OSError, AccountError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"the checkpoint cannot be linked into the new run: {reason}"
        raise ConflictError(message, param=_PARAM, code="cannot_link") from None
