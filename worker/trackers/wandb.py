"""The part of W&B's protocol that clients write with, over the journal: GraphQL operations, file stream and files.

W&B does not document it; the operations are taken from the public client (`wandb-core`).
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from trainyard.contract.wire.reports import EventLevel
from worker.trackers.artifacts import ArtifactFolder, store_or_state
from worker.trackers.journal import Journal
from worker.trackers.tracker_requests import Reporter, RunPrefixes, TrackerError, TrackerRequest
from worker.trackers.variables import tracker_token
from worker.trackers.wandb_artifacts import ARTIFACTS, GLOBAL_ID, WandbArtifacts
from worker.trackers.wandb_file import Document, find_run_file
from worker.trackers.wandb_history import parse_config, parse_lines, parse_summary, resume_point
from worker.trackers.wandb_media import report_media
from worker.trackers.wandb_remainder import EndedRun, NotedFile, NotedFiles
from worker.trackers.wandb_runs import WandbRun

GRAPHQL = "/graphql"
UPLOADS = "/wandb-files/"
_STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")
_MAX_BODY = 64 * 1024 * 1024
_OPERATION = re.compile(r"\b(?:query|mutation)\s+(\w+)|^\s*(?:query\s*)?\{\s*(\w+)")
"""The name of an operation, or the first field of an unnamed operation."""
_RUN_ID = re.compile(r"[\w\-][\w.\- ]{0,127}")
_CLIENT_FILES = frozenset({"output.log", "wandb-summary.json", "config.yaml"})
"""Files of the client whose content the job has already: its log, metrics and parameters."""
_TAGS = {"groupName": "group", "jobType": "job_type", "project": "project", "displayName": "run"}
_NO_PROJECT = "uncategorized"
"""The project that the client names where the program names none."""
_ENTITY = "trainyard"
_LEVELS: Mapping[str, EventLevel] = {"WARN": "warning", "ERROR": "error"}
_NAMES_FILES = "0.12.10"
"""The lowest version of a server for which clients before 0.30 name the files of a list of images."""
_SEARCHES = 10
"""Requests of a run at which its file is looked for among the open files of the program's processes."""


class WandbApi:
    """Runs in memory; points, parameters and tags in the journal; files in the job's folder of artifacts."""

    def __init__(
        self, journal: Journal, artifacts: ArtifactFolder, listener: Callable[[], tuple[str, str]], files: NotedFiles
    ) -> None:
        """
        Args:
            listener: Returns URL and secret of the listener, for the addresses to which clients upload files.
            files: Notes which files the runs have, for the next attempt.
        """
        self._files = files
        self._journal = journal
        self._artifacts = artifacts
        self._listener = listener
        self._prefixes = RunPrefixes()
        self._lock = threading.RLock()
        self._runs: dict[tuple[Reporter, str], WandbRun] = {}
        self._resumed: dict[tuple[Reporter, str], frozenset[str]] = {}
        """The metrics of runs of earlier executions that a client continues."""
        self._searches: dict[tuple[Reporter, str], int] = {}
        self._operations: dict[str, Callable[[Reporter, Document], Document]] = {
            "Viewer": _viewer,
            "GetDefaultEntity": _viewer,
            "viewer": _viewer,
            "GetViewer": _viewer,
            "UpsertBucket": self._upsert_run,
            "RunResumeStatus": self._resume_status,
            "Run": self._read_run,
            "ProbeRunInput": _features,
            "CreateRunFiles": self._create_files,
            "NotifyScriptableRunAlert": self._alert,
            "RunStoppedStatus": _running,
            "ServerFeaturesQuery": _features,
            "ProbeServerCapabilities": _features,
            "OrganizationCoreWeaveOrganizationID": _nothing,
        } | WandbArtifacts(artifacts, self._uploads).operations

    def serves(self, path: str) -> bool:
        return path == GRAPHQL or path.startswith((UPLOADS, "/files/"))

    def handle(self, request: TrackerRequest) -> Document | Path:
        """Carry out a request and return the response, or the file that is the response.

        Raises:
            TrackerError: It cannot be carried out.
            OSError: The spool or a file could not be written.
        """
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
        tags = {str(one): "true" for one in variables.get("tags") or ()}
        tags |= {
            name: str(variables[key])
            for key, name in _TAGS.items()
            if variables.get(key) not in ("", None, _NO_PROJECT)
        }
        notes = {"notes": str(variables["notes"])} if variables.get("notes") else {}
        with self._lock:
            run.describe(parameters, tags, notes)
            self._find_file(reporter, run_id, run)
            if variables.get("config"):
                run.define(metrics)
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

    def _resume_status(self, reporter: Reporter, variables: Document) -> Document:
        """Answer `wandb.init(id=..., resume=...)`. A run of this execution continues after its last line. A run of an
        earlier execution continues after the checkpoint from which the job resumes."""
        run_id = _run_id(variables.get("name"))
        project = str(variables.get("project") or _NO_PROJECT)
        if not self._artifacts.has_folder(_folder(run_id)):
            return {"model": {"id": project, "name": project, "bucket": None}}
        with self._lock:
            run = self._known_run(run_id, reporter.rank)
            known = _ended(run_id, reporter.rank, run) if run else self._files.ended_run(run_id, reporter.rank)
            known = known or EndedRun(run_id, reporter.rank, {"summaryMetrics": "{}", "config": "{}", "tags": []}, [])
            step = 0
            if run is not None and run.execution == reporter.execution:
                step = run.begin_again()
            else:
                self._resumed[reporter, run_id] = frozenset(known.metrics)
            step = step or self._journal.resumes_at(reporter.execution, "wandb")
            bucket = {
                "id": run_id,
                "name": run_id,
                "displayName": run_id,
                "logLineCount": 0,
                "eventsLineCount": 0,
                "eventsTail": "[]",
                "wandbConfig": '{"t": 1}',
            }
            bucket |= known.fields | resume_point(json.loads(known.fields["summaryMetrics"]), step)
        entity = {"id": _ENTITY, "name": _ENTITY}
        return {"model": {"id": project, "name": project, "entity": entity, "bucket": bucket}}

    def _read_run(self, _reporter: Reporter, variables: Document) -> Document:
        """Answer `wandb.Api().run(path)` for a run that a rank of this job has begun since the launcher started."""
        run_id = str(variables.get("name"))
        run = self._known_run(run_id)
        if run is None:
            return {"project": None}
        tags = run.described("tags")
        fields = _fields(run) | {
            "id": run_id,
            "name": run_id,
            "projectId": 0,
            "group": tags.get("group"),
            "jobType": tags.get("job_type"),
            "state": "running",
            "historyLineCount": 0,
            "readOnly": True,
            "createdAt": run.created.isoformat(),
            "heartbeatAt": datetime.now(UTC).isoformat(),
            "user": {"name": _ENTITY, "username": _ENTITY},
        }
        unknown = dict.fromkeys(("sweepName", "commit", "description", "systemMetrics", "historyKeys"))
        return {"project": {"internalId": "0", "run": fields | unknown}}

    def _known_run(self, run_id: str, rank: int | None = None) -> WandbRun | None:
        """Return the newest run of an id that a rank, or any, has begun since the launcher started."""
        runs = reversed(list(self._runs.items()))
        return next((run for (by, one), run in runs if one == run_id and rank in (None, by.rank)), None)

    def _create_files(self, reporter: Reporter, variables: Document) -> Document:
        run_id = _run_id(variables.get("run"))
        url, secret = self._listener()
        names = [one for one in variables.get("files") or () if isinstance(one, str)]
        files = [{"name": name, "uploadUrl": f"{url}{UPLOADS}{quote(run_id)}/{quote(name, safe='')}"} for name in names]
        headers = [f"Authorization: Bearer {tracker_token(secret, reporter)}"]
        return {"createRunFiles": {"runID": run_id, "uploadHeaders": headers, "files": files}}

    def _alert(self, reporter: Reporter, variables: Document) -> Document:
        """Carry out `run.alert`: an event of the job, which webhooks deliver."""
        level = _LEVELS.get(str(variables.get("severity")), "info")
        title, text = (str(variables.get(name) or "") for name in ("title", "text"))
        run = self._run(reporter, _run_id(variables.get("runName")), str(variables.get("runName")), None)
        pause = variables.get("waitDuration")
        # The client gives milliseconds.
        run.alert(level, title, text, pause / 1e3 if isinstance(pause, int | float) else 0.0)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _uploads(self) -> tuple[str, str]:
        url, secret = self._listener()
        return url + UPLOADS, secret

    def _store_file(self, request: TrackerRequest) -> Document | Path:
        path = request.path.removeprefix(UPLOADS)
        if request.method == "GET":
            return self._artifacts.find(path)
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
            run.stream(*parse_lines(files.get("wandb-history.jsonl")))
            run.summary = parse_summary(files.get("wandb-summary.json")) or run.summary
            self._find_file(reporter, run_id, run)
            run.read_file()
            if body.get("complete") is True:
                run.completed = True
                self._end(reporter, run_id, run)
        return {}

    def read_files(self) -> None:
        """Store the data of run files that the streams did not have. Called periodically.

        Raises:
            OSError: The data could not be stored; the next call repeats it.
        """
        with self._lock:
            for run in self._runs.values():
                if run.reads_file:
                    run.read_file()
                    if run.completed and not run.reads_file:
                        run.close()

    def end_runs(self, execution: int) -> None:
        """Store the rest of runs of other executions, whose program has ended.

        Raises:
            OSError: It could not be stored.
        """
        with self._lock:
            for (reporter, run_id), run in self._runs.items():
                if reporter.execution != execution:
                    self._end(reporter, run_id, run)

    def _end(self, reporter: Reporter, run_id: str, run: WandbRun) -> None:
        if run.end():
            self._files.add(_ended(run_id, reporter.rank, run))

    def _find_file(self, reporter: Reporter, run_id: str, run: WandbRun) -> None:
        """Look for the file that the client's process has open: it waits for the response of this request."""
        searches = self._searches.get((reporter, run_id), 0)
        if run.reads_file or searches >= _SEARCHES:
            return
        self._searches[reporter, run_id] = searches + 1
        file = find_run_file(run_id, reporter.rank, frozenset(one.identity for one in run.lines.files))
        if file is not None:
            run.attach(file)
            self._files.add(NotedFile(file.path, run.prefix, run.resumes_at))

    def _run(self, reporter: Reporter, run_id: str, name: str, project: object) -> WandbRun:
        with self._lock:
            run = self._runs.get((reporter, run_id))
            if run is not None:
                return run
            folder = _folder(run_id)
            run = WandbRun(
                self._journal,
                reporter.execution,
                self._prefixes.prefix(reporter, f"{reporter} {run_id}", name),
                name=name,
                project=str(project or _NO_PROJECT),
                resumes_at=self._journal.resumes_at(reporter.execution, "wandb"),
                earlier=self._resumed.get((reporter, run_id), frozenset()),
                report_media=lambda objects: report_media(
                    self._artifacts, folder, reporter.execution, self._journal, objects
                ),
            )
            self._artifacts.create_folder(folder)
            self._runs[reporter, run_id] = run
            return run


def _fields(run: WandbRun) -> Document:
    """Return the fields of a run, as a server of W&B has them."""
    parameters, tags, notes = (run.described(kind) for kind in ("parameters", "tags", "notes"))
    return {
        "displayName": run.name,
        "tags": [tag for tag, value in tags.items() if value == "true"],
        "notes": notes.get("notes"),
        "config": json.dumps({key: {"value": value} for key, value in parameters.items()}),
        "summaryMetrics": json.dumps(run.whole_summary),
    }


def _ended(run_id: str, rank: int, run: WandbRun) -> EndedRun:
    return EndedRun(run_id, rank, _fields(run), sorted(run.metrics))


def _folder(run_id: str) -> str:
    return quote(run_id)


def _run_id(value: object) -> str:
    if not isinstance(value, str) or not _RUN_ID.fullmatch(value):
        raise TrackerError(400, "BAD_REQUEST", f"the run id {str(value)[:80]!a} is malformed")
    return value


def _viewer(_reporter: Reporter, _variables: Document) -> Document:
    names = dict.fromkeys(("entity", "username", "name"), _ENTITY) | {"id": GLOBAL_ID, "deletedAt": None}
    viewer = names | {"email": "", "admin": False, "flags": "{}", "teams": {"edges": []}, "apiKeys": {"edges": []}}
    return {"viewer": viewer, "serverInfo": {"cliVersionInfo": {"max_cli_version": _NAMES_FILES}}}


def _running(_reporter: Reporter, _variables: Document) -> Document:
    return {"project": {"run": {"stopped": False}}}


def _features(_reporter: Reporter, _variables: Document) -> Document:
    """Answer that the server has no optional operations but for its version, to new clients and those before 0.20."""
    types = {"QueryType": ["serverInfo"], "MutationType": [], "ServerInfoType": ["cliVersionInfo"], "RunType": []}
    fields = {kind: {"fields": [{"name": name} for name in names]} for kind, names in types.items()}
    return {"serverInfo": {"features": []}} | fields


def _nothing(_reporter: Reporter, _variables: Document) -> Document:
    return {}
