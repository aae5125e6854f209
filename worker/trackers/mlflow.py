"""The part of MLflow's REST API that clients write with, over the journal. MLflow's documentation "REST API" has it."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worker.trackers.answers import Reporter, RunPrefixes, TrackerError, TrackerRequest
from worker.trackers.artifacts import ArtifactFolder, store_or_state
from worker.trackers.journal import Journal, TrackedValue
from worker.trackers.mlflow_models import MlflowModels

API = "/api/2.0/mlflow/"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_MAX_BODY = 16 * 1024 * 1024
_PROBED = frozenset({"/api/3.0/mlflow/server-info"})
"""What the client asks of every server, and does without."""
_NOTES = "mlflow.note.content"
_INTERNAL = "mlflow."
_YEAR_2200 = 7_258_118_400_000

Document = dict[str, Any]


@dataclass
class _Run:
    """A run of the program, as the client reads it back."""

    run_id: str
    experiment_id: str
    name: str
    prefix: str
    start_time: int
    status: str = "RUNNING"
    end_time: int = 0
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Document] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def info(self) -> Document:
        info = {
            "run_id": self.run_id,
            "run_uuid": self.run_id,
            "run_name": self.name,
            "experiment_id": self.experiment_id,
            "status": self.status,
            "start_time": self.start_time,
            "artifact_uri": f"mlflow-artifacts:/{self.experiment_id}/{self.run_id}/artifacts",
            "lifecycle_stage": "active",
        }
        return info | ({"end_time": self.end_time} if self.end_time else {})

    def document(self) -> Document:
        data = {
            "metrics": list(self.metrics.values()),
            "params": [{"key": key, "value": value} for key, value in self.parameters.items()],
            "tags": [{"key": key, "value": value} for key, value in self.tags.items()],
        }
        return {"info": self.info(), "data": data}


class MlflowApi:
    """Experiments and runs in memory; points, parameters and tags in the journal; artifacts in the job's folder."""

    def __init__(self, journal: Journal, artifacts: ArtifactFolder) -> None:
        self._journal = journal
        self._prefixes = RunPrefixes()
        self._artifacts = artifacts
        self._models = MlflowModels(journal)
        self._lock = threading.Lock()
        self._experiments = {"0": "Default"}
        self._runs: dict[str, _Run] = {}
        self._routes: dict[tuple[str, str], Callable[[Reporter, Document], Document]] = {
            ("GET", "experiments/get-by-name"): self._find_experiment,
            ("GET", "experiments/get"): self._get_experiment,
            ("POST", "experiments/create"): self._create_experiment,
            ("POST", "experiments/search"): self._search_experiments,
            ("GET", "experiments/search"): self._search_experiments,
            ("POST", "experiments/set-experiment-tag"): _accept,
            ("POST", "runs/create"): self._create_run,
            ("GET", "runs/get"): self._get_run,
            ("POST", "runs/update"): self._update_run,
            ("POST", "runs/log-metric"): self._log_metric,
            ("POST", "runs/log-parameter"): self._log_parameter,
            ("POST", "runs/log-batch"): self._log_batch,
            ("POST", "runs/set-tag"): self._set_tag,
            ("POST", "runs/delete-tag"): self._delete_tag,
            ("POST", "runs/log-model"): _accept,
            ("POST", "runs/log-inputs"): _accept,
            ("POST", "runs/search"): self._search_runs,
            ("GET", "metrics/get-history"): self._history,
        }

    def handle(self, request: TrackerRequest) -> Document | Path:
        """Carry out a request and return the answer, or the file that is the answer.

        Raises:
            TrackerError: It cannot be carried out.
            OSError: The spool or an artifact could not be written.
        """
        if request.path.startswith(ARTIFACTS) and request.method == "PUT":
            store_or_state(self._artifacts, request.path.removeprefix(ARTIFACTS), request, self._journal)
            return {}
        if request.path.startswith(ARTIFACTS) and request.method == "GET":
            return self._artifacts.find(request.path.removeprefix(ARTIFACTS))
        if request.path == ARTIFACTS.rstrip("/") and request.method == "GET":
            return {"files": [_listed(path) for path in self._artifacts.entries(request.query.get("path", ""))]}
        path = request.path.removeprefix(API)
        route = self._routes.get((request.method, path)) or self._models.route(request.method, path)
        if not request.path.startswith(API) or route is None:
            message = f"{request.method} {request.path[:200]} is not supported by Trainyard"
            if request.path not in _PROBED:
                self._journal.state_once(request.reporter.execution, "mlflow_route", f"MLflow's call {message}")
            raise TrackerError(404, "ENDPOINT_NOT_FOUND", message)
        return route(request.reporter, {**request.query, **request.json_object(_MAX_BODY)})

    def _find_experiment(self, _reporter: Reporter, body: Document) -> Document:
        name = _field(body, "experiment_name")
        with self._lock:
            key = next((key for key, one in self._experiments.items() if one == name), None)
        if key is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no experiment {name[:200]!r}")
        return {"experiment": _experiment(key, name)}

    def _get_experiment(self, _reporter: Reporter, body: Document) -> Document:
        key = _field(body, "experiment_id")
        name = self._experiments.get(key)
        if name is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no experiment {key[:200]!r}")
        return {"experiment": _experiment(key, name)}

    def _create_experiment(self, _reporter: Reporter, body: Document) -> Document:
        name = _field(body, "name")
        with self._lock:
            if name in self._experiments.values():
                raise TrackerError(400, "RESOURCE_ALREADY_EXISTS", f"the experiment {name[:200]!r} exists")
            key = str(len(self._experiments))
            self._experiments[key] = name
        return {"experiment_id": key}

    def _search_experiments(self, _reporter: Reporter, _body: Document) -> Document:
        return {"experiments": [_experiment(key, name) for key, name in dict(self._experiments).items()]}

    def _create_run(self, reporter: Reporter, body: Document) -> Document:
        tags = _pairs(body, "tags")
        name = str(body.get("run_name") or tags.get("mlflow.runName") or "run")
        run = self._add_run(reporter, uuid.uuid4().hex, str(body.get("experiment_id") or "0"), name)
        run.start_time = int(body.get("start_time") or run.start_time)
        self._tag(reporter, run, tags)
        return {"run": run.document()}

    def _add_run(self, reporter: Reporter, run_id: str, experiment: str, name: str) -> _Run:
        prefix = self._prefixes.prefix(reporter, run_id, name)
        run = self._runs[run_id] = _Run(run_id, experiment, name, prefix, int(time.time() * 1000))
        return run

    def _run(self, reporter: Reporter, body: Document) -> _Run:
        """Return the run of the request. A run of an earlier attempt is continued under its id."""
        run_id = str(body.get("run_id") or body.get("run_uuid") or "")
        if not run_id.isalnum() or len(run_id) > 64:
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", "run_id is missing or malformed")
        return self._runs.get(run_id) or self._add_run(reporter, run_id, "0", run_id[:8])

    def _get_run(self, reporter: Reporter, body: Document) -> Document:
        return {"run": self._run(reporter, body).document()}

    def _update_run(self, reporter: Reporter, body: Document) -> Document:
        run = self._run(reporter, body)
        run.status = str(body.get("status") or run.status)
        run.end_time = int(body.get("end_time") or run.end_time)
        run.name = str(body.get("run_name") or run.name)
        return {"run_info": run.info()}

    def _log_metric(self, reporter: Reporter, body: Document) -> Document:
        self._log(reporter, self._run(reporter, body), [body])
        return {}

    def _log_parameter(self, reporter: Reporter, body: Document) -> Document:
        run = self._run(reporter, body)
        self._describe(reporter, run, {_field(body, "key"): str(body.get("value", ""))})
        return {}

    def _log_batch(self, reporter: Reporter, body: Document) -> Document:
        run = self._run(reporter, body)
        metrics = body.get("metrics") or []
        if not isinstance(metrics, list) or not all(isinstance(one, dict) for one in metrics):
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", "metrics is no list of objects")
        self._log(reporter, run, metrics)
        self._describe(reporter, run, _pairs(body, "params"))
        self._tag(reporter, run, _pairs(body, "tags"))
        return {}

    def _set_tag(self, reporter: Reporter, body: Document) -> Document:
        self._tag(reporter, self._run(reporter, body), {_field(body, "key"): str(body.get("value", ""))})
        return {}

    def _delete_tag(self, reporter: Reporter, body: Document) -> Document:
        self._run(reporter, body).tags.pop(_field(body, "key"), None)
        return {}

    def _search_runs(self, _reporter: Reporter, _body: Document) -> Document:
        return {"runs": [run.document() for run in list(self._runs.values())]}

    def _history(self, reporter: Reporter, body: Document) -> Document:
        latest = self._run(reporter, body).metrics.get(_field(body, "metric_key"))
        return {"metrics": [latest] if latest else []}

    def _log(self, reporter: Reporter, run: _Run, metrics: list[Document]) -> None:
        values = [
            TrackedValue(run.prefix + _field(one, "key"), one.get("value"), _integer(one.get("step")), _time(one))
            for one in metrics
        ]
        self._journal.log(reporter.execution, "mlflow", values)
        for one in metrics:
            run.metrics[str(one["key"])] = {name: one.get(name) for name in ("key", "value", "timestamp", "step")}

    def _describe(self, reporter: Reporter, run: _Run, parameters: Mapping[str, str]) -> None:
        if parameters:
            named = {run.prefix + name: _parse(value) for name, value in parameters.items()}
            self._journal.describe(reporter.execution, parameters=named)
            run.parameters.update(parameters)

    def _tag(self, reporter: Reporter, run: _Run, tags: Mapping[str, str]) -> None:
        run.tags.update(tags)
        shown = {run.prefix + name: value for name, value in tags.items() if not name.startswith(_INTERNAL)}
        if shown or _NOTES in tags:
            self._journal.describe(reporter.execution, tags=shown, notes=tags.get(_NOTES))


def _accept(_reporter: Reporter, _body: Document) -> Document:
    return {}


def _listed(path: Path) -> Document:
    size = {} if path.is_dir() else {"file_size": path.stat().st_size}
    return {"path": path.name, "is_dir": path.is_dir()} | size


def _experiment(key: str, name: str) -> Document:
    location = f"mlflow-artifacts:/{key}"
    return {"experiment_id": key, "name": name, "artifact_location": location, "lifecycle_stage": "active"}


def _field(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name} is missing")
    return value


def _pairs(body: Document, name: str) -> dict[str, str]:
    pairs = body.get(name) or []
    if not isinstance(pairs, list) or not all(isinstance(one, dict) and "key" in one for one in pairs):
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name} is no list of keys and values")
    return {str(one["key"]): str(one.get("value", "")) for one in pairs}


def _integer(value: object) -> int:
    """Return a step; MLflow sends 64-bit integers as numbers or texts, and leaves out 0."""
    try:
        return int(str(value or 0))
    except ValueError:
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"the step {str(value)[:80]!a} is no integer") from None


def _time(metric: Document) -> datetime:
    milliseconds = _integer(metric.get("timestamp"))
    if not 0 < milliseconds < _YEAR_2200:
        return datetime.now(UTC)
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _parse(value: str) -> bool | int | float | str | None:
    """Return the value of a parameter, which MLflow sends as the text that Python prints."""
    if value in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
