"""Jobs, files, models and checkpoints as OpenAI's API describes them. Pure functions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from service.db.models import Checkpoint, DataFile, FineTune, Job
from service.jobs.schemas import progress_resource
from service.metrics.values import json_value
from service.metrics.x_axis import TOKENS
from service.plugins.openai.errors import in_openai_terms

Document = dict[str, Any]

_ENDED = ("succeeded", "failed", "cancelled")
_HELD = ("running", "pausing", "lost", "cancelling")
_RESULTS = "file_results_"
_METRICS = {
    "train/loss": ("train_loss",),
    "train/mean_token_accuracy": ("train_mean_token_accuracy",),
    "eval/loss": ("valid_loss", "full_valid_loss"),
    "eval/mean_token_accuracy": ("valid_mean_token_accuracy", "full_valid_mean_token_accuracy"),
}
"""OpenAI's names of our metrics. The metrics of the whole validation file are left out if evaluations use a part of
it."""
_ERROR_CODES = {"rejected": "invalid_request", "error": "training_error"}


def seconds(time: datetime) -> int:
    return int(time.timestamp())


def list_document(data: Sequence[Document], has_more: bool) -> Document:
    """Return a page of a list."""
    ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": list(data), "first_id": ends[0], "last_id": ends[1], "has_more": has_more}


def status_of(job: Job) -> str:
    """Return OpenAI's status. A job that continues after an interruption is still running; after a pause it is queued
    again."""
    if job.status in _ENDED:
        return job.status
    waits = job.status in ("paused", "queued", "pending", "submitting")
    if job.desired == "paused" and waits:
        return "paused"
    if not (waits and job.pause_requested_at is not None) and (job.started_at is not None or job.status in _HELD):
        return "running"
    return "validating_files" if job.attempts == 0 else "queued"


def results_file_id(job_id: str) -> str:
    """Return the id of the file with the results of a job."""
    return _RESULTS + job_id.removeprefix("job_")


def results_job_id(file_id: str) -> str | None:
    """Return the job of a file with results; None for other files."""
    return f"job_{file_id.removeprefix(_RESULTS)}" if file_id.startswith(_RESULTS) else None


def job_document(tune: FineTune, job: Job, organization: str, now: datetime) -> Document:
    """Return OpenAI's `FineTuningJob`."""
    status = status_of(job)
    method = tune.method
    chosen = dict(method[method["type"]]["hyperparameters"])
    chosen.pop("beta", None)
    tokens = job.latest.get(TOKENS)
    return {
        "object": "fine_tuning.job",
        "id": tune.job_id,
        "created_at": seconds(job.created_at),
        "error": _error(job) if status == "failed" else None,
        "fine_tuned_model": tune.result if status == "succeeded" else None,
        "finished_at": seconds(job.finished_at) if status in _ENDED and job.finished_at else None,
        "hyperparameters": chosen,
        "model": tune.model,
        "organization_id": organization,
        "result_files": [results_file_id(tune.job_id)] if status == "succeeded" else [],
        "seed": tune.seed,
        "status": status,
        "trained_tokens": int(tokens) if status in _ENDED and isinstance(tokens, int | float) else None,
        "training_file": tune.training_file,
        "validation_file": tune.validation_file,
        "estimated_finish": _estimated_finish(job, now) if status == "running" else None,
        "integrations": [],
        "metadata": dict(job.labels),
        "method": method,
    }


def _error(job: Job) -> Document:
    failure = job.failure or {}
    reason = job.status_reason or "error"
    message = failure.get("message") or job.status_message
    hint = failure.get("hint")
    field = str(message).partition(":")[0]
    param = {"data.id": "training_file", "data.path": "training_file", "data.eval_id": "validation_file"}.get(field)
    param = "model" if field.startswith("model.") else param
    param = "validation_file" if field == "data.eval_path" else param
    code = f"invalid_{param}" if param else _ERROR_CODES.get(reason, reason)
    text = f"{message}. {hint}" if hint else str(message)
    return {"code": code, "message": in_openai_terms(text), "param": param}


def _estimated_finish(job: Job, now: datetime) -> int | None:
    progress = progress_resource(job, now)
    if progress is None or progress.eta_seconds is None or not isfinite(progress.eta_seconds):
        return None
    return seconds(now) + int(progress.eta_seconds)


def file_document(row: DataFile) -> Document:
    """Return OpenAI's `FileObject` of an uploaded file."""
    return _file(row.id, row.size_bytes, row.created_at, row.name, "fine-tune")


def results_document(job: Job, size: int) -> Document:
    """Return OpenAI's `FileObject` of a job's results."""
    created = job.finished_at or job.created_at
    return _file(results_file_id(job.id), size, created, "step_metrics.csv", "fine-tune-results")


def _file(id_: str, size: int, created: datetime, name: str, purpose: str) -> Document:
    return {
        "object": "file",
        "id": id_,
        "bytes": size,
        "created_at": seconds(created),
        "filename": name,
        "purpose": purpose,
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }


def metric_values(job: Job, metrics: Mapping[str, Any]) -> Document:
    """Return the metrics of a job that OpenAI's API has, by its names; metrics without a value are left out."""
    partial = job.spec["evaluation"]["limit"] is not None
    return {
        name: json_value(metrics[key])
        for key, names in _METRICS.items()
        for name in names
        if isinstance(metrics.get(key), int | float) and not (partial and name.startswith("full_"))
    }


def checkpoint_document(tune: FineTune, job: Job, checkpoint: Checkpoint) -> Document:
    """Return OpenAI's `FineTuningJobCheckpoint`. Its type has numbers only, which are finite in JSON."""
    numbers = {key: value for key, value in checkpoint.metrics.items() if isinstance(value, int | float)}
    finite = {key: value for key, value in numbers.items() if isfinite(value)}
    metrics = {"step": checkpoint.step, **metric_values(job, finite)}
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": checkpoint.id,
        "created_at": seconds(checkpoint.created_at),
        "fine_tuned_model_checkpoint": f"{tune.result}:ckpt-step-{checkpoint.step}",
        "fine_tuning_job_id": tune.job_id,
        "metrics": metrics,
        "step_number": checkpoint.step,
    }


def model_document(name: str, created: datetime, owner: str) -> Document:
    """Return OpenAI's `Model`."""
    return {"object": "model", "id": name, "created": seconds(created), "owned_by": owner}
