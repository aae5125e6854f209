"""The part of MLflow's REST API about experiments: names that a program gives to groups of its runs."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainyard.contract.mlflow_filter import Kind, Value
from worker.trackers.mlflow_search import search
from worker.trackers.tracker_requests import Reporter, TrackerError

Document = dict[str, Any]
_ATTRIBUTES = ("name", "experiment_id", "creation_time", "last_update_time")


@dataclass
class _Experiment:
    """An experiment, as the client reads it back."""

    key: str
    name: str
    created: int = field(default_factory=lambda: int(time.time() * 1000))
    tags: dict[str, str] = field(default_factory=dict)

    def document(self) -> Document:
        return {
            "experiment_id": self.key,
            "name": self.name,
            "artifact_location": f"mlflow-artifacts:/{self.key}",
            "lifecycle_stage": "active",
            "creation_time": self.created,
            "last_update_time": self.created,
            "tags": [{"key": key, "value": value} for key, value in dict(self.tags).items()],
        }

    def value(self, kind: Kind, key: str) -> Value:
        if kind == "tag":
            return self.tags.get(key)
        value: Value = self.document()[key]
        return float(self.key) if key == "experiment_id" else value


class MlflowExperiments:
    """Experiments in memory. They have no part in the job, whose page shows the points of all runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._experiments = {"0": _Experiment("0", "Default")}
        self.routes: dict[tuple[str, str], Callable[[Reporter, Document], Document]] = {
            ("GET", "experiments/get-by-name"): self._find,
            ("GET", "experiments/get"): self._get,
            ("POST", "experiments/create"): self._create,
            ("POST", "experiments/search"): self._search,
            ("GET", "experiments/search"): self._search,
            ("POST", "experiments/set-experiment-tag"): self._set_tag,
        }

    def _find(self, _reporter: Reporter, body: Document) -> Document:
        name = str(body.get("experiment_name") or "")
        experiment = next((one for one in list(self._experiments.values()) if one.name == name), None)
        if experiment is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no experiment {name[:200]!r}")
        return {"experiment": experiment.document()}

    def _get(self, _reporter: Reporter, body: Document) -> Document:
        return {"experiment": self._known(body).document()}

    def _known(self, body: Document) -> _Experiment:
        key = str(body.get("experiment_id") or "")
        known = self._experiments.get(key)
        if known is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no experiment {key[:200]!r}")
        return known

    def _create(self, _reporter: Reporter, body: Document) -> Document:
        name = str(body.get("name") or "")
        if not name:
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", "name is missing")
        with self._lock:
            if any(one.name == name for one in self._experiments.values()):
                raise TrackerError(400, "RESOURCE_ALREADY_EXISTS", f"the experiment {name[:200]!r} exists")
            key = str(len(self._experiments))
            self._experiments[key] = _Experiment(key, name)
        return {"experiment_id": key}

    def _search(self, _reporter: Reporter, body: Document) -> Document:
        matches, next_page = search(list(self._experiments.values()), body, _ATTRIBUTES, ("tag",))
        return {"experiments": [one.document() for one in matches]} | next_page

    def _set_tag(self, _reporter: Reporter, body: Document) -> Document:
        self._known(body).tags[str(body.get("key"))] = str(body.get("value", ""))
        return {}
