"""Jobs and sweeps in MLflow's terms. Pure functions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.models import Job, Sweep
from service.jobs.parameters import Reported, Shown
from trainyard.contract.kinds.tasks import task_kind
from trainyard.contract.mlflow_filter import Kind, Value
from trainyard.contract.spec.spec_diff import flatten

Document = dict[str, Any]

DEFAULT_EXPERIMENT = "0"
"""The experiment of the jobs that belong to no sweep."""
DEFAULT_NAME = "Default"

STATUSES: Mapping[str, tuple[str, ...]] = {
    "SCHEDULED": ("queued", "submitting", "pending", "paused"),
    "RUNNING": ("running", "pausing", "cancelling", "lost"),
    "FINISHED": ("succeeded",),
    "FAILED": ("failed",),
    "KILLED": ("cancelled",),
}
"""A job's statuses by MLflow's."""
_STATUS_OF = {status: name for name, statuses in STATUSES.items() for status in statuses}

RUN_ATTRIBUTES = ("run_id", "run_name", "status", "user_id", "start_time", "end_time")
SPEC_PREFIX = "spec."
"""Begins the names of parameters that come from the spec."""

_PROGRAM_FIELDS = ("task", "gpus", "argv")
"""Fields of the spec that say something about a program of the user's own."""
_TRAINING_FIELDS = (
    *("task", "strategy", "precision", "gpus", "model", "data", "steps", "epochs", "batch", "loss", "optimizer"),
    *("schedule", "ema", "lora_rank", "trainable", "early_stopping", "seed"),
)
_NUMBERS: Mapping[str, float] = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True)
class Run:
    """A job's values by name, as filters compare them and as the client reads them."""

    job: Job
    params: Mapping[str, str]
    tags: Mapping[str, str]

    @classmethod
    def of(cls, job: Job) -> "Run":
        reported = Reported.from_json(job.parameters).shown()
        return cls(job, _params(job, reported), _tags(job, reported))

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.params) + len(self.tags) + len(self.job.latest)

    def value(self, kind: Kind, key: str) -> Value:
        """Return a value; None if the run does not have it."""
        if kind == "metric":
            latest = self.job.latest.get(key)
            return _NUMBERS.get(latest) if isinstance(latest, str) else latest
        if kind != "attribute":
            return (self.params if kind == "param" else self.tags).get(key)
        value: Value = self.info().get(key)
        return value

    def info(self) -> Document:
        """Return MLflow's `RunInfo`."""
        job = self.job
        info: Document = {
            "run_id": job.id,
            "run_uuid": job.id,
            "run_name": job.name,
            "experiment_id": job.sweep_id or DEFAULT_EXPERIMENT,
            "user_id": job.created_by,
            "status": _STATUS_OF[job.status],
            "start_time": milliseconds(job.started_at or job.created_at),
            "artifact_uri": f"mlflow-artifacts:/{job.id}",
            "lifecycle_stage": "active",
        }
        return info if job.finished_at is None else info | {"end_time": milliseconds(job.finished_at)}

    def document(self, newest: Mapping[str, tuple[int, datetime]]) -> Document:
        """Return MLflow's `Run`.

        Args:
            newest: Step and time of the newest point of each metric. Metrics without a point have step 0.
        """
        job = self.job
        unknown = (0, job.finished_at or job.updated_at)
        metrics = []
        for key, value in job.latest.items():
            step, time = newest.get(key, unknown)
            metrics.append({"key": key, "value": value, "step": step, "timestamp": milliseconds(time)})
        return {
            "info": self.info(),
            "data": {"metrics": metrics, "params": _pairs(self.params), "tags": _pairs(self.tags)},
            "inputs": {},
        }


def _params(job: Job, reported: Shown) -> dict[str, str]:
    fields = _PROGRAM_FIELDS if task_kind(job.spec.get("task")).runs_program else _TRAINING_FIELDS
    spec = flatten({name: job.spec.get(name) for name in fields})
    params = {SPEC_PREFIX + path: _text(value) for path, value in spec.items() if value not in (None, [], {})}
    return params | {name: _text(value) for name, value in reported.parameters.items()}


def _text(value: Any) -> str:
    """Return a value as MLflow's client logs it: as Python prints it."""
    return json.dumps(value) if isinstance(value, list) else str(value)


def _tags(job: Job, reported: Shown) -> dict[str, str]:
    labels = {name: str(value) for name, value in job.labels.items()}
    own = {
        "mlflow.runName": job.name,
        "mlflow.user": job.created_by,
        "mlflow.source.type": "JOB",
        "mlflow.source.git.commit": labels.get("git_commit"),
        "mlflow.source.git.branch": labels.get("git_branch"),
        "mlflow.note.content": reported.notes,
        "trainyard.status": job.status,
        "trainyard.status_message": job.status_message,
    }
    return labels | reported.tags | {name: text for name, text in own.items() if text}


def _pairs(values: Mapping[str, str]) -> list[Document]:
    return [{"key": key, "value": value} for key, value in values.items()]


def milliseconds(time: datetime) -> int:
    """Return a time as MLflow has it: milliseconds since 1970."""
    return int(time.timestamp() * 1000)


def default_experiment() -> Document:
    return _experiment(DEFAULT_EXPERIMENT, DEFAULT_NAME)


def sweep_experiment(sweep: Sweep) -> Document:
    """Return a sweep as an experiment; its members are the runs."""
    created = milliseconds(sweep.created_at)
    tags = [{"key": "mlflow.user", "value": sweep.created_by}]
    return _experiment(sweep.id, sweep.name) | {"creation_time": created, "last_update_time": created, "tags": tags}


def _experiment(experiment_id: str, name: str) -> Document:
    return {
        "experiment_id": experiment_id,
        "name": name,
        "artifact_location": f"mlflow-artifacts:/experiments/{experiment_id}",
        "lifecycle_stage": "active",
    }
