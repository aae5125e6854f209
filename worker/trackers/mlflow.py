"""The part of MLflow's REST API that clients write with, over the journal. MLflow's documentation "REST API" has it."""

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worker.trackers.artifacts import ArtifactFolder, logged_part, store_or_state
from worker.trackers.journal import Journal, TrackedValue, parse_value
from worker.trackers.media import media_item
from worker.trackers.mlflow_experiments import MlflowExperiments
from worker.trackers.mlflow_models import MlflowModels
from worker.trackers.mlflow_runs import MAX_HISTORY_POINTS, RUN_NAME, MetricPoint, PointHistories, Run
from worker.trackers.mlflow_search import page_of, search
from worker.trackers.tracker_requests import Reporter, RunPrefixes, TrackerError, TrackerRequest

API = "/api/2.0/mlflow/"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_LOGGED_IMAGE = re.compile(
    r"mlflow/[^/]+/(?P<run>[0-9A-Za-z]{1,64})/artifacts/images/"
    r"(?P<key>[^/]+)([%+])step\3(?P<step>\d{1,18})\3timestamp\3(?P<time>\d{1,18})\3[0-9a-z-]+\.png"
)
"""The file of `MlflowClient.log_image`, whose key has `~` for `/`, or `#` in earlier versions."""
_MAX_BODY = 16 * 1024 * 1024
_PROBED = frozenset({"/api/3.0/mlflow/server-info"})
"""Paths that the client requests from every server, and does not need."""
_NOTES = "mlflow.note.content"
_INTERNAL = "mlflow."
_YEAR_2200 = 7_258_118_400_000
_MAX_STEP = 2**63
_HISTORY_PAGE = 25_000
"""Points of a page of a history; the client asks for as many."""
_RUN_ATTRIBUTES = ("run_id", "run_name", "status", "user_id", "start_time", "end_time", "artifact_uri")

Document = dict[str, Any]


class MlflowApi:
    """Experiments and runs in memory; points, parameters and tags in the journal; artifacts in the job's folder."""

    def __init__(self, journal: Journal, artifacts: ArtifactFolder) -> None:
        self._journal = journal
        self._prefixes = RunPrefixes()
        self._artifacts = artifacts
        self._models = MlflowModels(journal)
        self._lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._histories = PointHistories(MAX_HISTORY_POINTS)
        self._routes: dict[tuple[str, str], Callable[[Reporter, Document], Document]] = {
            ("POST", "runs/create"): self._create_run,
            ("GET", "runs/get"): self._get_run,
            ("POST", "runs/update"): self._update_run,
            ("POST", "runs/log-metric"): self._log_metric,
            ("POST", "runs/log-parameter"): self._log_parameter,
            ("POST", "runs/log-batch"): self._log_batch,
            ("POST", "runs/set-tag"): self._set_tag,
            ("POST", "runs/delete-tag"): self._delete_tag,
            ("POST", "runs/log-model"): _accept,
            ("POST", "runs/log-inputs"): self._state_inputs,
            ("POST", "runs/search"): self._search_runs,
            ("GET", "metrics/get-history"): self._history,
        } | MlflowExperiments().routes

    def handle(self, request: TrackerRequest) -> Document | Path:
        """Carry out a request and return the response, or the file that is the response.

        Raises:
            TrackerError: It cannot be carried out.
            OSError: The spool or an artifact could not be written.
        """
        if request.path.startswith(ARTIFACTS) and request.method == "PUT":
            name = request.path.removeprefix(ARTIFACTS)
            if store_or_state(self._artifacts, name, request, self._journal):
                self._index_image(request.reporter, name)
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

    def end_runs(self, running: int) -> None:
        """Count points without steps again by their times if they came out of order, as with asynchronous logging.

        Args:
            running: The execution that goes on.

        Raises:
            OSError: They could not be written.
        """
        with self._log_lock:
            for run_id, key, execution, points in self._histories.take_late(running):
                prefix = self._runs[run_id].prefix
                times = [_time({"timestamp": point.time}) for point in points]
                values = [
                    TrackedValue(prefix + key, point.value, None, time, prefix)
                    for point, time in zip(points, times, strict=True)
                ]
                self._journal.rewrite(execution, "mlflow", values)

    def _index_image(self, reporter: Reporter, name: str) -> None:
        """Report an image of `log_image(key=, step=)`, which the client names in the path alone."""
        listed = self._artifacts.listed_path(name)
        match = _LOGGED_IMAGE.fullmatch(listed)
        if match is None:
            return
        run = self._run(reporter, {"run_id": match["run"]})
        key, time = re.sub("[~#]", "/", match["key"]), _time({"timestamp": match["time"]})
        item = media_item(
            self._journal.media_key(run.prefix, key), int(match["step"]), "image", time, path=listed, format="png"
        )
        if item is not None:
            self._journal.add_media(reporter.execution, [item])

    def _create_run(self, reporter: Reporter, body: Document) -> Document:
        tags = _pairs(body, "tags")
        name = str(body.get("run_name") or tags.get(RUN_NAME) or "")
        run = self._add_run(reporter, uuid.uuid4().hex, str(body.get("experiment_id") or "0"), name or "run")
        run.start_time = int(body.get("start_time") or run.start_time)
        self._tag(reporter, run, tags | ({RUN_NAME: name} if name else {}))
        return {"run": run.document()}

    def _add_run(self, reporter: Reporter, run_id: str, experiment: str, name: str) -> Run:
        prefix = self._prefixes.prefix(reporter, run_id, name)
        return self._runs.setdefault(run_id, Run(run_id, experiment, name, prefix, int(time.time() * 1000)))

    def _run(self, reporter: Reporter, body: Document) -> Run:
        """Return the run of the request. A run of an earlier attempt is continued under its id."""
        run_id = str(body.get("run_id") or body.get("run_uuid") or "")
        if not run_id.isalnum() or len(run_id) > 64:
            raise TrackerError(400, "INVALID_PARAMETER_VALUE", "run_id is missing or malformed")
        run = self._runs.get(run_id)
        if run is None:
            run = self._add_run(reporter, run_id, "0", run_id[:8])
            run.is_continued = True
        return run

    def _get_run(self, reporter: Reporter, body: Document) -> Document:
        return {"run": self._run(reporter, body).document()}

    def _update_run(self, reporter: Reporter, body: Document) -> Document:
        run = self._run(reporter, body)
        run.status = str(body.get("status") or run.status)
        run.end_time = int(body.get("end_time") or run.end_time)
        if body.get("run_name"):
            self._tag(reporter, run, {RUN_NAME: str(body["run_name"])})
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
        self._describe(reporter, run, _pairs(body, "params"))
        self._log(reporter, run, metrics)
        self._tag(reporter, run, _pairs(body, "tags"))
        return {}

    def _set_tag(self, reporter: Reporter, body: Document) -> Document:
        self._tag(reporter, self._run(reporter, body), {_field(body, "key"): str(body.get("value", ""))})
        return {}

    def _delete_tag(self, reporter: Reporter, body: Document) -> Document:
        run, key = self._run(reporter, body), _field(body, "key")
        if run.tags.pop(key, None) is None and not run.is_continued:
            raise TrackerError(404, "RESOURCE_DOES_NOT_EXIST", f"the run has no tag {key[:200]!r}")
        if key == _NOTES:
            self._journal.describe(reporter.execution, notes="")
        elif not key.startswith(_INTERNAL):
            self._journal.describe(reporter.execution, prefix=run.prefix, removed_tags=[key])
        return {}

    def _state_inputs(self, reporter: Reporter, _body: Document) -> Document:
        message = "MLflow's datasets are not stored by Trainyard; what log_input is given is left out"
        self._journal.state_once(reporter.execution, "mlflow_inputs", message)
        return {}

    def _search_runs(self, _reporter: Reporter, body: Document) -> Document:
        experiments = {str(one) for one in body.get("experiment_ids") or ()}
        runs = sorted(self._runs.values(), key=lambda run: run.start_time)
        of_experiments = [run for run in runs if run.experiment_id in experiments]
        matches, next_page = search(of_experiments, body, _RUN_ATTRIBUTES, ("metric", "param", "tag"))
        return {"runs": [run.document() for run in matches]} | next_page

    def _history(self, reporter: Reporter, body: Document) -> Document:
        run, key = self._run(reporter, body), _field(body, "metric_key")
        if run.is_continued:
            message = "the run was not created on this node in this attempt, so that its history cannot be read here"
            raise TrackerError(400, "INVALID_STATE", f"{message}; the job's curves have all points")
        start, end = page_of(body, default=_HISTORY_PAGE)
        points, has_more = self._histories.read(run.run_id, key, start, end)
        next_page = {"next_page_token": str(end)} if has_more else {}
        return {"metrics": [point.document(key) for point in points]} | next_page

    def _log(self, reporter: Reporter, run: Run, metrics: list[Document]) -> None:
        """Record the points that the run does not have.

        The client repeats requests whose response was lost. `log_model` sends points of the run again, with the id of
        the model, to link them to it.
        """
        with self._log_lock:
            new: dict[tuple[str, MetricPoint] | int, TrackedValue] = {}
            for index, one in enumerate(metrics):
                key, step, time = _field(one, "key"), _integer(one.get("step")), _time(one)
                value = TrackedValue(run.prefix + key, one.get("value"), step, time, run.prefix)
                number = parse_value(value.value)
                if number is None:
                    new[index] = value  # The journal states it.
                    continue
                given = _integer(one.get("timestamp"))
                point = MetricPoint(number, step, given or int(time.timestamp() * 1000))
                known = self._histories.has(run.run_id, key, point) if given else False
                is_link = known is None and bool(one.get("model_id"))
                if not (known or is_link):
                    new.setdefault((key, point), value)
            points = [identity for identity in new if not isinstance(identity, int)]
            earlier = self._earlier(reporter.execution, run, points)
            values = [value for identity, value in new.items() if identity not in earlier]
            self._journal.log(reporter.execution, "mlflow", values)
            for key, point in points:
                run.add_point(key, point)
                self._histories.add(run.run_id, key, reporter.execution, point)

    def _earlier(
        self, execution: int, run: Run, points: Iterable[tuple[str, MetricPoint]]
    ) -> set[tuple[str, MetricPoint]]:
        """Return the points after which the run has logged another of the same step, in MLflow's order.

        Points at step 0 of a metric without other steps are left alone: the program may give no steps.
        """
        earlier: set[tuple[str, MetricPoint]] = set()
        newest: dict[tuple[str, int], tuple[int, float]] = {}
        with_steps: set[str] = set()
        for key, point in points:
            if point.step > 0 or (key in run.metrics and run.metrics[key].step > 0):
                with_steps.add(key)
            before = newest.setdefault((key, point.step), point.order)
            newest[key, point.step] = max(before, point.order)
            is_late = before > point.order or self._histories.has_later(run.run_id, key, execution, point)
            if key in with_steps and is_late:
                earlier.add((key, point))
        return earlier

    def _describe(self, reporter: Reporter, run: Run, parameters: Mapping[str, str]) -> None:
        if parameters:
            with self._lock:
                run.set_parameters(reporter.execution, parameters)
            named = {name: _parse(value) for name, value in parameters.items()}
            self._journal.describe(reporter.execution, prefix=run.prefix, parameters=named)

    def _tag(self, reporter: Reporter, run: Run, tags: Mapping[str, str]) -> None:
        run.tags.update(tags)
        run.name = tags.get(RUN_NAME) or run.name
        shown = {name: value for name, value in tags.items() if not name.startswith(_INTERNAL)}
        if tags.get(RUN_NAME):
            shown["run"] = tags[RUN_NAME]
        if shown or _NOTES in tags:
            self._journal.describe(reporter.execution, prefix=run.prefix, tags=shown, notes=tags.get(_NOTES))


def _accept(_reporter: Reporter, _body: Document) -> Document:
    return {}


def _listed(path: Path) -> Document:
    size = {} if path.is_dir() else {"file_size": path.stat().st_size}
    return {"path": logged_part(path.name), "is_dir": path.is_dir()} | size


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
        number = int(str(value or 0))
    except ValueError:
        number = _MAX_STEP
    if abs(number) >= _MAX_STEP:
        message = f"{str(value)[:80]!a} is no integer of 64 bits, as a step and a time must be"
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", message)
    return number


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
