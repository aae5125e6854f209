"""The part of MLflow's REST API with which clients log and register models. Their files are artifacts of a run."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.contract.mlflow_filter import Kind, Value
from worker.trackers.journal import Journal
from worker.trackers.mlflow_search import search
from worker.trackers.tracker_requests import Reporter, TrackerError

Document = dict[str, Any]
_MODELS = "logged-models"
_READY = "LOGGED_MODEL_READY"
_STATUSES: Mapping[object, str] = {1: "LOGGED_MODEL_PENDING", 2: _READY, 3: "LOGGED_MODEL_UPLOAD_FAILED"}
_REGISTRY = "MLflow's registry of models is not kept; the files of a registered model are artifacts of the job"
_ATTRIBUTES = ("name", "model_id", "model_type", "source_run_id", "creation_timestamp", "last_updated_timestamp")
_MAX_NAME = 250
_MAX_MODELS = 1000
"""How many of the newest models, registered models, and versions of a registered model can be read back."""


@dataclass
class _Model:
    """A model, as the client reads it back."""

    model_id: str
    name: str
    artifact_uri: str
    given: Document
    """The body of the request that created the model."""
    created: int = field(default_factory=lambda: int(time.time() * 1000))
    status: str = "LOGGED_MODEL_PENDING"

    @property
    def experiment(self) -> str:
        return str(self.given.get("experiment_id") or "0")

    def value(self, kind: Kind, key: str) -> Value:
        """Return the value that a search compares; None if the model does not have it."""
        if kind == "attribute":
            times = dict.fromkeys(("creation_timestamp", "last_updated_timestamp"), self.created)
            value: Value = (self.given | times | {"name": self.name, "model_id": self.model_id}).get(key)
            return value
        pairs = self.given.get(f"{kind}s") or []
        return next((str(one.get("value")) for one in reversed(pairs) if one.get("key") == key), None)

    def document(self) -> Document:
        given = {key: self.given[key] for key in ("model_type", "source_run_id", "tags") if self.given.get(key)}
        info = {
            "model_id": self.model_id,
            "experiment_id": self.experiment,
            "name": self.name,
            "artifact_uri": self.artifact_uri,
            "creation_timestamp_ms": self.created,
            "last_updated_timestamp_ms": self.created,
            "status": self.status,
        }
        return {"model": {"info": info | given, "data": {"params": self.given.get("params") or []}}}


class MlflowModels:
    """Models in memory; the client uploads their files to the folder of artifacts of the run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}
        self._names: Counter[tuple[str, str]] = Counter()
        self._versions: dict[str, list[Document]] = {}
        self._routes: dict[tuple[str, str], Callable[[Reporter, Document], Document]] = {
            ("POST", _MODELS): self._create,
            ("POST", f"{_MODELS}/search"): self._search,
            ("POST", "runs/outputs"): _accept,
            ("POST", "registered-models/create"): self._register,
            ("GET", "registered-models/get"): self._registered,
            ("POST", "registered-models/set-tag"): _accept,
            ("POST", "registered-models/alias"): _accept,
            ("POST", "model-versions/create"): self._add_version,
            ("GET", "model-versions/get"): self._version,
            ("POST", "model-versions/set-tag"): _accept,
            ("POST", "model-versions/transition-stage"): self._version,
        }

    def route(self, method: str, path: str) -> Callable[[Reporter, Document], Document] | None:
        """Return the handler of a request; None if the request is not about models."""
        collection, _, rest = path.partition("/")
        if collection != _MODELS or not rest or (method, path) in self._routes:
            return self._routes.get((method, path))
        model_id, _, part = rest.partition("/")
        return lambda _reporter, body: self._change(method, model_id, part, body)

    def _create(self, _reporter: Reporter, body: Document) -> Document:
        name = str(body.get("name") or "model")[:_MAX_NAME].replace("/", "_").lstrip(".") or "model"
        model_id = f"m-{uuid.uuid4().hex}"
        run = str(body.get("source_run_id") or model_id)
        with self._lock:
            # The second model of a name in a run does not replace the first.
            self._names[run, name] += 1
            folder = name if self._names[run, name] == 1 else f"{name}-{self._names[run, name]}"
            uri = f"mlflow-artifacts:/{body.get('experiment_id') or '0'}/{run}/artifacts/{folder}"
            model = self._models[model_id] = _Model(model_id, name, uri, body)
            if len(self._models) > _MAX_MODELS:
                del self._models[next(iter(self._models))]
        return model.document()

    def _search(self, _reporter: Reporter, body: Document) -> Document:
        experiments = {str(one) for one in body.get("experiment_ids") or ()}
        models = [one for one in list(self._models.values()) if not experiments or one.experiment in experiments]
        orders = [
            f"{one.get('field_name')} {'DESC' if one.get('ascending') is False else 'ASC'}"
            for one in body.get("order_by") or ()
        ]
        if body.get("datasets"):
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", "datasets: they are not stored by Trainyard")
        matches, next_page = search(models, body | {"order_by": orders}, _ATTRIBUTES, ("param", "tag"))
        return {"models": [model.document()["model"] for model in matches]} | next_page

    def _change(self, method: str, model_id: str, part: str, body: Document) -> Document:
        model = self._models.get(model_id)
        if model is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no model {model_id[:200]!r}")
        for key in ("params", "tags"):
            if part == key and isinstance(body.get(key), list):
                model.given[key] = [*(model.given.get(key) or []), *body[key]]
        if method == "PATCH" and not part:
            status = body.get("status")
            model.status = _STATUSES.get(status, str(status or _READY))
        return model.document()

    def _register(self, reporter: Reporter, body: Document) -> Document:
        name = str(body.get("name") or "")
        self._journal.state_once(reporter.execution, "mlflow_registry", _REGISTRY)
        with self._lock:
            if name in self._versions:
                raise TrackerError(400, "RESOURCE_ALREADY_EXISTS", f"the model {name[:200]!r} exists")
            if len(self._versions) >= _MAX_MODELS:
                raise TrackerError(400, "RESOURCE_EXHAUSTED", f"a program registers at most {_MAX_MODELS} models")
            self._versions[name] = []
        return {"registered_model": {"name": name}}

    def _registered(self, _reporter: Reporter, body: Document) -> Document:
        name = str(body.get("name") or "")
        return {"registered_model": {"name": name, "latest_versions": self._known(name)[-1:]}}

    def _add_version(self, _reporter: Reporter, body: Document) -> Document:
        name = str(body.get("name") or "")
        given = {key: body[key] for key in ("source", "run_id", "description", "tags", "model_id") if body.get(key)}
        with self._lock:
            versions = self._known(name)
            number = int(versions[-1]["version"]) + 1 if versions else 1
            version = given | {"name": name, "version": str(number), "status": "READY"}
            versions.append(version)
            del versions[:-_MAX_MODELS]
        return {"model_version": version}

    def _version(self, _reporter: Reporter, body: Document) -> Document:
        name, number = str(body.get("name") or ""), str(body.get("version") or "")
        matching = next((one for one in self._known(name) if one["version"] == number), None)
        if matching is None:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"there is no version {number[:80]!r} of {name[:80]!r}")
        return {"model_version": matching}

    def _known(self, name: str) -> list[Document]:
        """Return the versions of a registered model.

        Raises:
            TrackerError: The program has registered no model of that name.
        """
        if name not in self._versions:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"this program registered no model {name[:200]!r}")
        return self._versions[name]


def _accept(_reporter: Reporter, _body: Document) -> Document:
    return {}
