"""The requests of clients of OpenAI's API: fine-tuning jobs, their results, and models."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy.orm import Session

from service.auth.principals import Principal
from service.core.errors import ConflictError, InvalidRequestError, InvalidSpecError, NotFoundError
from service.db.engine import Database
from service.db.models import DataFile, FineTune, Job
from service.files.service import FileService
from service.jobs.repository import JobRepository, checkpoint_at
from service.jobs.service import JobAction, apply_action, delete_checkpoints, require_change
from service.jobs.service import cancel as cancel_job
from service.metrics.queries import CurveQuery, read_curves
from service.plugins.openai.base_models import BaseModelEntry, BaseModels
from service.plugins.openai.errors import ModelConfigurationError, administrators_problems, check_after
from service.plugins.openai.model_folder import folder_problem, needs_template
from service.plugins.openai.repository import ACCURACIES, EVAL_LOSS, TRAIN_LOSS, FineTunedJob, FineTuneRepository
from service.plugins.openai.requests import CreateJob
from service.plugins.openai.schemas import (
    Document,
    checkpoint_document,
    job_document,
    list_document,
    model_document,
    results_document,
    results_job_id,
)
from service.plugins.openai.spec import (
    FineTuneRequest,
    check_request,
    choose_hyperparameters,
    method_document,
    spec_document,
    unusual_values,
)
from service.specs.acceptance import AcceptedSpec
from trainyard.contract.spec.training_spec import TrainingSpec

_RESULTS = {
    TRAIN_LOSS: "train_loss",
    ACCURACIES[TRAIN_LOSS]: "train_accuracy",
    EVAL_LOSS: "valid_loss",
    ACCURACIES[EVAL_LOSS]: "valid_mean_token_accuracy",
}
"""The columns of the results by our metrics."""
_CHECKPOINT = ":ckpt-step-"
"""Separates the name of a model from the step of a checkpoint."""
_OWNER_OF_BASE_MODELS = "administrator"

CheckSpec = Callable[[TrainingSpec], None]
AcceptSpec = Callable[[dict[str, Any]], AcceptedSpec]
"""Accepts the spec of a document, or raises InvalidSpecError."""
SubmitSpec = Callable[[AcceptedSpec, Sequence[str], Callable[[Session, Job], None]], str]
"""Submits a spec with warnings, adds rows in the transaction that stores the job, and returns its id."""


@dataclass(frozen=True)
class FineTuneService:
    """Fine-tuning jobs and models of all users."""

    database: Database
    files: FileService
    models: BaseModels
    organization: str
    """The `organization_id` of every job."""
    shares_folders: bool
    """Whether this machine has all folders that the nodes have."""

    def create(
        self,
        principal: Principal,
        body: CreateJob,
        accept: AcceptSpec,
        submit: SubmitSpec,
        now: datetime,
        *,
        key: str | None = None,
    ) -> Document:
        """Submit a fine-tuning job.

        Args:
            key: The idempotency key, which determines the seed if the request has none.

        Raises:
            InvalidRequestError: The model, a file or a hyperparameter cannot be used.
            ModelConfigurationError: The model's configuration makes every request invalid.
            PermissionDeniedError: The user may only read.
        """
        require_change(principal)
        check_request(body)
        base, request = self._request(body, now, key)
        chosen = choose_hyperparameters(request)
        stored: list[FineTune] = []

        def add_rows(session: Session, job: Job) -> None:
            stored.append(
                FineTune(
                    job_id=job.id,
                    model=body.model,
                    result=f"ft:{base}:{principal.name}:{body.suffix or ''}:{job.id[-12:]}",
                    method=method_document(request, chosen),
                    training_file=request.training.id,
                    validation_file=request.validation.id if request.validation is not None else None,
                    seed=request.seed,
                    created_at=now,
                )
            )
            session.flush()
            session.add(stored[0])

        accepted = self._accept(base, request, spec_document(request, chosen), accept)
        return self.read(submit(accepted, unusual_values(request, chosen), add_rows), now)

    def _request(self, body: CreateJob, now: datetime, key: str | None) -> tuple[str, FineTuneRequest]:
        """Return the base model, and the request with everything that it names."""
        base, entry, origin = self._base(body.model, now)
        return base, FineTuneRequest(
            body=body,
            entry=entry,
            training=self._file("training_file", body.training_file),
            validation=self._file("validation_file", body.validation_file) if body.validation_file else None,
            seed=_new_seed(key) if body.seed is None else body.seed,
            origin=origin,
        )

    def _accept(
        self, base: str, request: FineTuneRequest, document: dict[str, Any], accept: AcceptSpec
    ) -> AcceptedSpec:
        """Return the accepted spec of a job.

        Raises:
            InvalidRequestError: The invalid values are the request's.
            ModelConfigurationError: The invalid values are the administrator's, or the model's folder is not usable.
        """
        template = needs_template(request.training.format)
        file = self.models.path
        cause = f"model {base} is configured wrongly in {file.name} of this service"
        try:
            accepted = accept(document)
            problem = folder_problem(request.entry.path, shared=self.shares_folders, template=template)
            if request.origin is not None:
                cause = f"the base model of job {request.origin.partition(':')[0]}, which made this one, is not usable"
        except InvalidSpecError as error:
            if not (problems := administrators_problems(error.problems)):
                raise
            problem = "; ".join(map(str, problems))
        if problem is None:
            return accepted
        structlog.get_logger("openai").error("model cannot be used", file=str(file), model=base, reason=problem)
        raise ModelConfigurationError(f"{cause}; tell an administrator: {problem}", param="model")

    def _base(self, name: str, now: datetime) -> tuple[str, BaseModelEntry, str | None]:
        """Return the base model, its entry, and for a fine-tuned model the job to start from.

        Raises:
            InvalidRequestError: There is no such model, or its weights are gone.
        """
        if not name.startswith("ft:"):
            return name, self.models.get(name), None
        match, step = self._find_model(name)
        if match is None:
            message = f"there is no fine-tuned model {name[:200]!r}"
            raise InvalidRequestError(message, param="model", code="model_not_found")
        tune, _ = match
        base = tune.result.split(":")[1]
        spec, origin = self._origin(tune.job_id, step, now)
        return base, self.models.get(base).with_parameters_of(spec), origin

    def _origin(self, job_id: str, step: int | None, now: datetime) -> tuple[dict[str, Any], str]:
        """Return the spec of a model's job, and the job and step of its weights.

        Raises:
            InvalidRequestError: They are no longer on the disk.
        """
        with self.database.read() as session:
            jobs = JobRepository(session, now)
            job = jobs.get(job_id)
            steps = jobs.checkpoint_steps(job)
        if not steps:
            message = f"names a model whose weights were deleted with the checkpoints of job {job_id}"
            raise InvalidRequestError(message, param="model", code="model_not_found")
        if step is not None and step not in steps:
            listed = ", ".join(map(str, steps))
            message = f"has no checkpoint of step {step} on the disk; there are those of the steps {listed}"
            raise InvalidRequestError(message, param="model", code="model_not_found")
        return job.spec, f"{job_id}:{steps[-1] if step is None else step}"

    def _find_model(self, name: str) -> tuple[FineTunedJob | None, int | None]:
        """Return the job of a fine-tuned model, and the step if the name belongs to a checkpoint."""
        result, mark, step = name.partition(_CHECKPOINT)
        if mark and not (step.isascii() and step.isdigit() and len(step) < 11):
            return None, None
        with self.database.read() as session:
            return FineTuneRepository(session).by_model(result), int(step) if mark else None

    def _file(self, param: str, file_id: str) -> DataFile:
        try:
            return self.files.get(file_id)
        except NotFoundError:
            message = f"there is no file {file_id!r} that you can read"
            raise InvalidRequestError(message, param=param, code="file_not_found") from None

    def read(self, job_id: str, now: datetime) -> Document:
        """Return a job. Raises NotFoundError."""
        with self.database.read() as session:
            tune, job = FineTuneRepository(session).get(job_id)
            return job_document(tune, job, self.organization, now)

    def list_jobs(self, after: str | None, limit: int, metadata: Mapping[str, str], now: datetime) -> Document:
        """Return a page of jobs, newest first. Raises InvalidRequestError: `after` is not the id of a job."""
        check_after(after, "job")
        with self.database.read() as session:
            rows, has_more = FineTuneRepository(session).list_page(after, limit, metadata)
            return list_document([job_document(*row, self.organization, now) for row in rows], has_more)

    def change(
        self, principal: Principal, job_id: str, action: JobAction, now: datetime, check_spec: CheckSpec | None
    ) -> Document:
        """Apply an action to a job of the caller.

        Args:
            check_spec: Raises if the caller may not run the job's spec, for actions that start it again.

        Raises:
            NotFoundError: There is no such job.
            ConflictError: Its status does not allow the action.
        """
        self.read(job_id, now)
        runs = self.files.runs
        apply_action(self.database, principal, job_id, action, runs=runs, now=now, check_spec=check_spec)
        return self.read(job_id, now)

    def checkpoints(self, job_id: str, after: str | None, limit: int) -> Document:
        """Return a page of a job's checkpoints, newest first.

        Raises:
            InvalidRequestError: `after` is not the id of a checkpoint of the job.
        """
        with self.database.read() as session:
            repository = FineTuneRepository(session)
            tune, job = repository.get(job_id)
            rows, has_more = repository.checkpoints(job, after, limit)
            return list_document([checkpoint_document(tune, job, row) for row in rows], has_more)

    def results(self, file_id: str, now: datetime) -> tuple[Document, bytes] | None:
        """Return the file with a job's results, and its content; None if the id belongs to no such file.

        Raises:
            NotFoundError: There is no such job, or it has not succeeded.
        """
        job = self._job_of_results(file_id)
        if job is None:
            return None
        content = _results_csv(self.database, job.id, now)
        return results_document(job, len(content)), content

    def _job_of_results(self, file_id: str) -> Job | None:
        """Return the job of a file with results; None for other files.

        Raises:
            NotFoundError: There is no such job, or it has not succeeded.
        """
        job_id = results_job_id(file_id)
        if job_id is None:
            return None
        with self.database.read() as session, suppress(NotFoundError):
            _, job = FineTuneRepository(session).get(job_id)
            if job.status == "succeeded":
                return job
        raise NotFoundError(f"there is no file {file_id[:80]!r}", code="file_not_found", param="file_id")

    def refuse_to_delete_results(self, file_id: str) -> None:
        """Raise if the id belongs to the results of a job.

        Raises:
            ConflictError: The id belongs to results, which are made from the job's metrics while they are read.
            NotFoundError: There is no such job, or it has not succeeded.
        """
        job = self._job_of_results(file_id)
        if job is not None:
            message = (
                f"{file_id} holds the results of job {job.id} and cannot be deleted alone; "
                f"`trainyard delete {job.id}` deletes the job with its results"
            )
            raise ConflictError(message, code="results_of_job", param="file_id")

    def list_models(self) -> Document:
        """Return the base models, and the models of jobs that succeeded."""
        changed_at = self.models.changed_at()
        data = [model_document(name, changed_at, _OWNER_OF_BASE_MODELS) for name in sorted(self.models.all())]
        with self.database.read() as session:
            for tune, job in FineTuneRepository(session).models():
                data.append(model_document(tune.result, job.finished_at or job.created_at, job.created_by))
        return {"object": "list", "data": data}

    def model(self, name: str) -> Document:
        """Return a model. Raises NotFoundError."""
        if name in self.models.all():
            return model_document(name, self.models.changed_at(), _OWNER_OF_BASE_MODELS)
        match, step = self._find_model(name)
        if match is not None:
            _, job = match
            if step is None:
                return model_document(name, job.finished_at or job.created_at, job.created_by)
            with self.database.read() as session:
                checkpoint = checkpoint_at(session, job, step)
            if checkpoint is not None:
                return model_document(name, checkpoint.created_at, job.created_by)
        raise NotFoundError(f"there is no model {name[:200]!r}", code="model_not_found", param="model")

    def delete_model(self, principal: Principal, name: str, now: datetime) -> Document:
        """Delete a fine-tuned model: its name, and the job's checkpoints. The job, its metrics and its export stay.

        Raises:
            NotFoundError: There is no such model.
            ConflictError: It is a base model, which only an administrator can remove, from the file.
            PermissionDeniedError: It belongs to another user.
        """
        if name in self.models.all():
            raise ConflictError(f"{name} is a base model; administrators remove it from models.yaml", param="model")
        if _CHECKPOINT in name:
            self.model(name)
            message = "is a checkpoint, which is deleted together with its model, whose name is before `:ckpt-step-`"
            raise ConflictError(message, param="model")
        with self.database.read() as session:
            match = FineTuneRepository(session).by_model(name)
        if match is None:
            raise NotFoundError(f"there is no model {name[:200]!r}", code="model_not_found", param="model")
        delete_checkpoints(self.database, principal, match[0].job_id, now)
        with self.database.write() as session:
            tune, _ = FineTuneRepository(session).get(match[0].job_id)
            tune.model_deleted_at = now
        return {"object": "model", "id": name, "deleted": True}


def cancel(jobs: JobRepository, job: Job, by: str) -> None:
    """Record that a job is to end. As in OpenAI's API, a job that has ended in any way cannot be cancelled.

    Raises:
        ConflictError: It has ended.
    """
    if job.status == "cancelled":
        message = f"job {job.id} has already been cancelled; it cannot be cancelled again"
        raise ConflictError(message, code="job_finished")
    cancel_job(jobs, job, by)


def _new_seed(key: str | None) -> int:
    """Return a seed below 2^31; always the same for a key, so that a repeated request has the same seed."""
    if key is None:
        return secrets.randbelow(2**31)
    return int.from_bytes(sha256(key.encode()).digest()[:4]) >> 1


def _results_csv(database: Database, job_id: str, now: datetime) -> bytes:
    """Return the losses and accuracies by step; a value that was not measured is empty."""
    query = CurveQuery(tuple(_RESULTS), max_points=1_000_000, max_total=2_000_000)
    by_step: dict[int, dict[str, float]] = {}
    for series in read_curves(database, job_id, query, now).series:
        for step, value in zip(series.steps, series.values, strict=True):
            by_step.setdefault(step, {})[series.key] = value
    lines = [",".join(["step", *_RESULTS.values()])]
    for step, values in sorted(by_step.items()):
        lines.append(",".join([str(step), *(repr(values[key]) if key in values else "" for key in _RESULTS)]))
    return "".join(f"{line}\n" for line in lines).encode()
