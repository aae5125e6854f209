"""The part of W&B's protocol that clients write with, over the journal: GraphQL operations, file stream and files.

W&B does not document it; the operations are those of the public client (`wandb-core`).
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from worker.trackers.answers import Reporter, RunPrefixes, TrackerError, TrackerRequest
from worker.trackers.artifacts import ArtifactFolder, store_or_state
from worker.trackers.journal import Journal
from worker.trackers.variables import tracker_token
from worker.trackers.wandb_artifacts import ARTIFACTS, GLOBAL_ID, WandbArtifacts
from worker.trackers.wandb_history import (
    RunHistory,
    StepMetrics,
    gives_step,
    may_give_step,
    parse_config,
    parse_summary,
)
from worker.trackers.wandb_media import report_media

GRAPHQL = "/graphql"
UPLOADS = "/wandb-files/"
_STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")
_TELEMETRY = "/sdk/otel/"
_MAX_BODY = 64 * 1024 * 1024
_OPERATION = re.compile(r"\b(?:query|mutation)\s+(\w+)|^\s*(?:query\s*)?\{\s*(\w+)")
"""The name of an operation, or the first field of one without a name."""
_RUN_ID = re.compile(r"[\w\-][\w.\- ]{0,127}")
_CLIENT_FILES = frozenset({"output.log", "wandb-summary.json", "config.yaml"})
"""Files of the client whose content the job has already: its log, metrics and parameters."""
_TAGS = {"groupName": "group", "jobType": "job_type", "project": "project", "displayName": "run"}
_NO_PROJECT = "uncategorized"
"""The project that the client names where the program names none."""
_UPDATE_SECONDS = 5.5
"""How long lines wait for the definitions of their step metrics, which the client sends 5 s after it created a run."""
_ENTITY = "trainyard"

Document = dict[str, Any]


@dataclass
class _Run:
    """A run of one rank in one execution."""

    run_id: str
    name: str
    project: str
    prefix: str
    history: RunHistory
    metrics: StepMetrics = field(default_factory=StepMetrics)
    waiting: deque[Document] = field(default_factory=deque)
    """Lines that wait for the definitions of their step metrics, and those after them."""
    waits_until: float = field(default_factory=lambda: time.monotonic() + _UPDATE_SECONDS)
    summary: Document = field(default_factory=dict)
    parameters: Document = field(default_factory=dict)
    tags: Document = field(default_factory=dict)
    notes: Document = field(default_factory=dict)


class WandbApi:
    """Runs in memory; points, parameters and tags in the journal; files in the job's folder of artifacts."""

    def __init__(self, journal: Journal, artifacts: ArtifactFolder, listener: Callable[[], tuple[str, str]]) -> None:
        """
        Args:
            listener: Returns URL and secret of the listener, for the addresses to which clients upload files.
        """
        self._journal = journal
        self._artifacts = artifacts
        self._listener = listener
        self._prefixes = RunPrefixes()
        self._lock = threading.Lock()
        self._runs: dict[tuple[Reporter, str], _Run] = {}
        self._operations: dict[str, Callable[[Reporter, Document], Document]] = {
            "Viewer": _viewer,
            "viewer": _viewer,
            "GetViewer": _viewer,
            "UpsertBucket": self._upsert_run,
            "RunResumeStatus": self._resume_status,
            "CreateRunFiles": self._create_files,
            "RunStoppedStatus": _running,
            "ServerFeaturesQuery": _features,
            "ProbeServerCapabilities": _features,
            "OrganizationCoreWeaveOrganizationID": _nothing,
        } | WandbArtifacts(self._uploads).operations

    def serves(self, path: str) -> bool:
        return path == GRAPHQL or path.startswith((UPLOADS, _TELEMETRY, "/files/"))

    def handle(self, request: TrackerRequest) -> Document:
        """Carry out a request and return the answer.

        Raises:
            TrackerError: It cannot be carried out.
            OSError: The spool or a file could not be written.
        """
        if request.path.startswith(_TELEMETRY):
            request.read(_MAX_BODY)
            return {}
        if request.path.startswith(UPLOADS):
            return self._store_file(request)
        if request.path == GRAPHQL:
            return self._query(request.reporter, request.json_object(_MAX_BODY))
        stream = _STREAM.fullmatch(request.path)
        if stream is None:
            raise TrackerError(404, "ENDPOINT_NOT_FOUND", f"{request.path} is not supported by Trainyard")
        return self._stream(request.reporter, unquote(stream[3]), request.json_object(_MAX_BODY))

    def _query(self, reporter: Reporter, body: Document) -> Document:
        match = _OPERATION.search(str(body.get("query", "")))
        name = (match[1] or match[2]) if match else "without a name"
        operation = self._operations.get(name)
        if operation is None:
            message = f"W&B's operation {name[:80]} is not supported by Trainyard"
            self._journal.state_once(reporter.execution, f"wandb_{name[:80]}", message)
            return {"data": None, "errors": [{"message": message}]}
        variables = body.get("variables")
        return {"data": operation(reporter, variables if isinstance(variables, dict) else {})}

    def _upsert_run(self, reporter: Reporter, variables: Document) -> Document:
        run_id = _run_id(variables.get("name") or variables.get("id"))
        run = self._run(reporter, run_id, str(variables.get("displayName") or run_id), variables.get("project"))
        parameters, metrics = parse_config(variables.get("config"))
        if variables.get("config"):
            run.metrics = metrics
        if metrics.are_defined:
            run.waits_until = 0.0
            self.store(reporter.execution)
        tags = {str(one): "true" for one in variables.get("tags") or ()}
        tags |= {
            name: str(variables[key])
            for key, name in _TAGS.items()
            if variables.get(key) not in ("", None, _NO_PROJECT)
        }
        notes = {"notes": str(variables["notes"])} if variables.get("notes") else {}
        self._describe(reporter, run, parameters, tags, notes)
        bucket = {
            "id": run_id,
            "name": run_id,
            "displayName": run.name,
            "description": variables.get("notes"),
            "config": "{}",
            "sweepName": None,
            "historyLineCount": 0,
            "project": {"id": run.project, "name": run.project, "entity": {"id": _ENTITY, "name": _ENTITY}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _describe(self, reporter: Reporter, run: _Run, parameters: Document, tags: Document, notes: Document) -> None:
        """Append what is new: the client repeats the whole configuration with each change."""
        parameters, tags = _unknown(run.parameters, parameters), _unknown(run.tags, tags)
        text = _unknown(run.notes, notes).get("notes")
        if parameters or tags or text:
            self._journal.describe(
                reporter.execution,
                parameters={run.prefix + name: value for name, value in parameters.items()},
                tags={run.prefix + name: value for name, value in tags.items()},
                notes=text,
            )
        run.parameters |= parameters
        run.tags |= tags
        run.notes |= notes

    def _resume_status(self, reporter: Reporter, variables: Document) -> Document:
        """Answer `wandb.init(id=..., resume=...)`: the run continues after the checkpoint from which the job does."""
        run_id = _run_id(variables.get("name"))
        step = self._journal.resumes_at(reporter.execution)
        project = str(variables.get("project") or _NO_PROJECT)
        if not self._artifacts.has_folder(_folder(run_id)):
            return {"model": {"id": project, "name": project, "bucket": None}}
        bucket = {
            "id": run_id,
            "name": run_id,
            "displayName": run_id,
            "historyLineCount": step,
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps({"_step": step - 1, "_runtime": 0})] if step else []),
            "eventsTail": "[]",
            "summaryMetrics": "{}",
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }
        entity = {"id": _ENTITY, "name": _ENTITY}
        return {"model": {"id": project, "name": project, "entity": entity, "bucket": bucket}}

    def _create_files(self, reporter: Reporter, variables: Document) -> Document:
        run_id = _run_id(variables.get("run"))
        url, secret = self._listener()
        names = [one for one in variables.get("files") or () if isinstance(one, str)]
        files = [{"name": name, "uploadUrl": f"{url}{UPLOADS}{quote(run_id)}/{quote(name, safe='')}"} for name in names]
        headers = [f"Authorization: Bearer {tracker_token(secret, reporter)}"]
        return {"createRunFiles": {"runID": run_id, "uploadHeaders": headers, "files": files}}

    def _uploads(self) -> tuple[str, str]:
        url, secret = self._listener()
        return url + UPLOADS, secret

    def _store_file(self, request: TrackerRequest) -> Document:
        path = request.path.removeprefix(UPLOADS)
        if request.method == "GET":
            return self._artifacts.read_json(path)
        run_id, _, name = path.partition("/")
        if path.startswith(ARTIFACTS):
            store_or_state(self._artifacts, path, request, self._journal)
        elif unquote(name) in _CLIENT_FILES:
            request.discard()
        else:
            name = f"{_folder(_run_id(unquote(run_id)))}/{name}"
            store_or_state(self._artifacts, name, request, self._journal)
        return {}

    def _stream(self, reporter: Reporter, run_id: str, body: Document) -> Document:
        run = self._run(reporter, _run_id(run_id), run_id, None)
        files = body.get("files")
        files = files if isinstance(files, dict) else {}
        with self._lock:
            run.waiting += run.history.new_lines(files.get("wandb-history.jsonl"))
            if body.get("complete") is True or (run.waiting and gives_step(run.waiting[0])):
                run.waits_until = 0.0
            self._store_lines(reporter, run)
            run.summary = parse_summary(files.get("wandb-summary.json")) or run.summary
            if body.get("complete") is True:
                values = run.history.summary_values(run.summary, run.prefix)
                self._journal.log(reporter.execution, "wandb", values)
        return {}

    def store(self, execution: int) -> None:
        """Store what does not wait any more: lines of earlier executions, or after a while. Called periodically."""
        with self._lock:
            for (reporter, _), run in list(self._runs.items()):
                if reporter.execution != execution:
                    run.waits_until = 0.0
                self._store_lines(reporter, run)

    def _store_lines(self, reporter: Reporter, run: _Run) -> None:
        waits = run.waits_until > time.monotonic()
        while run.waiting and not (waits and may_give_step(run.waiting[0])):
            line = run.waiting[0]
            self._journal.log(reporter.execution, "wandb", run.history.values(line, run.prefix, run.metrics))
            run.waiting.popleft()
            objects = run.history.objects(line, run.prefix, run.metrics)
            report_media(self._artifacts, _folder(run.run_id), reporter.execution, self._journal, objects)

    def _run(self, reporter: Reporter, run_id: str, name: str, project: object) -> _Run:
        run = self._runs.get((reporter, run_id))
        if run is not None:
            return run
        prefix = self._prefixes.prefix(reporter, f"{reporter} {run_id}", name)
        history = RunHistory(resumes_at=self._journal.resumes_at(reporter.execution))
        run = _Run(run_id, name, str(project or _NO_PROJECT), prefix, history)
        self._artifacts.create_folder(_folder(run_id))
        return self._runs.setdefault((reporter, run_id), run)


def _folder(run_id: str) -> str:
    return quote(run_id)


def _run_id(value: object) -> str:
    if not isinstance(value, str) or not _RUN_ID.fullmatch(value):
        raise TrackerError(400, "BAD_REQUEST", f"the run id {str(value)[:80]!a} is malformed")
    return value


def _unknown(known: Document, values: Document) -> Document:
    return {name: value for name, value in values.items() if name not in known or known[name] != value}


def _viewer(_reporter: Reporter, _variables: Document) -> Document:
    names = dict.fromkeys(("entity", "username", "name"), _ENTITY) | {"id": GLOBAL_ID, "deletedAt": None}
    viewer = names | {"email": "", "admin": False, "flags": "{}", "teams": {"edges": []}, "apiKeys": {"edges": []}}
    return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {"max_cli_version": None}}}


def _running(_reporter: Reporter, _variables: Document) -> Document:
    return {"project": {"run": {"stopped": False}}}


def _features(_reporter: Reporter, _variables: Document) -> Document:
    """Answer that the server has no optional operations, to new clients and to those before 0.20."""
    types = ("QueryType", "MutationType", "ServerInfoType")
    return {"serverInfo": {"features": []}} | {name: {"fields": []} for name in types}


def _nothing(_reporter: Reporter, _variables: Document) -> Document:
    return {}
