"""W&B's artifacts (`run.log_artifact`): the operations with which the client uploads files to the job's folder."""

import base64
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from worker.trackers.answers import Reporter, TrackerError
from worker.trackers.variables import signature_of, tracker_token

ARTIFACTS = "artifacts/"
"""Where uploaded files of artifacts are, below the address and the folder of all uploads."""
GLOBAL_ID = base64.b64encode(b"Trainyard:0").decode()
"""The identifier of everything that exists once. Clients check that it is base64."""
_MANIFEST = "wandb_manifest.json"
_CREATE_FIELDS = (
    *("entityName", "projectName", "runName", "artifactTypeName", "artifactCollectionName", "artifactCollectionNames"),
    *("digest", "digestAlgorithm", "enableDigestDeduplication", "distributedID", "clientID", "sequenceClientID"),
    *("description", "labels", "aliases", "tags", "metadata", "historyStep", "ttlDurationSeconds"),
)
_ARTIFACT_FIELDS = ("ttlDurationSeconds", "ttlIsInherited", "tags", "aliases", "historyStep", "commitHash")
_MAX_ARTIFACTS = 10_000

Document = dict[str, Any]


@dataclass(frozen=True)
class _Artifact:
    artifact_id: str
    collection: str
    version: int
    kind: str
    digest: str
    metadata: str | None
    created: str


class WandbArtifacts:
    """The artifacts of the launcher's executions."""

    def __init__(self, address: Callable[[], tuple[str, str]]) -> None:
        """
        Args:
            address: Returns URL of uploads and secret of the listener.
        """
        self._address = address
        self._lock = threading.Lock()
        self._artifacts: dict[str, _Artifact] = {}
        self._versions: dict[str, itertools.count[int]] = defaultdict(itertools.count)
        self.operations: dict[str, Callable[[Reporter, Document], Document]] = {
            "ArtifactType": _no_project,
            "InputFields": _describe_type,
            "TypeInfo": _describe_type,
            "ProbeServerArtifact": _describe_type,
            "ArtifactByID": self._describe,
            "ArtifactByIDShort": self._describe,
            "ArtifactManifest": self._find_manifest,
            "FetchArtifactManifest": self._get_manifest,
            "CreateArtifact": self._create,
            "CreateArtifactManifest": self._create_manifest,
            "UpdateArtifactManifest": self._update_manifest,
            "CreateArtifactFiles": self._create_files,
            "CommitArtifact": self._commit,
        }

    def _create(self, _reporter: Reporter, variables: Document) -> Document:
        fields = _input(variables)
        name = str(fields.get("artifactCollectionName") or "artifact")
        with self._lock:
            if len(self._artifacts) >= _MAX_ARTIFACTS:
                raise TrackerError(400, "INVALID_STATE", f"a program may have at most {_MAX_ARTIFACTS} artifacts")
            artifact_id = base64.b64encode(f"Artifact:{len(self._artifacts)}".encode()).decode()
            self._artifacts[artifact_id] = _Artifact(
                artifact_id,
                name,
                version=next(self._versions[name]),
                kind=str(fields.get("artifactTypeName") or ""),
                digest=str(fields.get("digest") or ""),
                metadata=fields["metadata"] if isinstance(fields.get("metadata"), str) else None,
                created=datetime.now(UTC).isoformat(),
            )
        sequence = {"id": name, "latestArtifact": None}
        return {"createArtifact": {"artifact": {"id": artifact_id, "state": "PENDING", "artifactSequence": sequence}}}

    def _create_manifest(self, reporter: Reporter, variables: Document) -> Document:
        manifest_id = str(_input(variables).get("artifactID"))
        return {"createArtifactManifest": {"artifactManifest": self._manifest(reporter, manifest_id)}}

    def _update_manifest(self, reporter: Reporter, variables: Document) -> Document:
        manifest_id = str(_input(variables).get("artifactManifestID"))
        return {"updateArtifactManifest": {"artifactManifest": self._manifest(reporter, manifest_id)}}

    def _manifest(self, reporter: Reporter, artifact_id: str) -> Document:
        return {"id": artifact_id, "file": self._file(reporter, self._artifact(artifact_id), _MANIFEST)}

    def _create_files(self, reporter: Reporter, variables: Document) -> Document:
        files = _input(variables).get("artifactFiles")
        edges = [
            {"node": self._file(reporter, self._artifact(str(file.get("artifactID"))), str(file.get("name")))}
            for file in (files if isinstance(files, list) else [])
            if isinstance(file, dict)
        ]
        return {"createArtifactFiles": {"files": {"edges": edges, "pageInfo": {"hasNextPage": False}}}}

    def _commit(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._artifact(str(_input(variables).get("artifactID")))
        return {"commitArtifact": {"artifact": {"id": artifact.artifact_id, "digest": artifact.digest}}}

    def _describe(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._artifact(str(variables.get("id")))
        project: Document = {"id": GLOBAL_ID, "internalId": GLOBAL_ID, "name": "trainyard", "entityName": "trainyard"}
        project["entity"] = {"name": "trainyard"}
        fields = {
            "__typename": "Artifact",
            "id": artifact.artifact_id,
            "artifactSequence": {"__typename": "ArtifactSequence", "name": artifact.collection, "project": project},
            "versionIndex": artifact.version,
            "artifactType": {"name": artifact.kind},
            "metadata": artifact.metadata,
            "ttlDurationSeconds": -1,
            "ttlIsInherited": False,
            "state": "COMMITTED",
            "digest": artifact.digest,
            "createdAt": artifact.created,
        }
        unknown = dict.fromkeys(("description", "historyStep", "commitHash", "updatedAt", "currentManifest"))
        return {"artifact": fields | unknown | {"tags": [], "aliases": [], "size": 0, "fileCount": 0}}

    def _find_manifest(self, _reporter: Reporter, variables: Document) -> Document:
        """Answer where the manifest is of an artifact that the program logged, by its name: `model:v0`."""
        collection, _, version = str(variables.get("name")).partition(":v")
        for artifact in list(self._artifacts.values()):
            if (artifact.collection, str(artifact.version)) == (collection, version):
                return {"project": {"artifact": self._address_of_manifest(artifact)}}
        return {"project": {"artifact": None}}

    def _get_manifest(self, _reporter: Reporter, variables: Document) -> Document:
        return {"artifact": self._address_of_manifest(self._artifact(str(variables.get("id"))))}

    def _address_of_manifest(self, artifact: _Artifact) -> Document:
        url, secret = self._address()
        path = _path(artifact, _MANIFEST)
        signature = signature_of(secret, urlsplit(url + path).path)
        file = {"id": GLOBAL_ID, "directUrl": f"{url}{path}?signature={signature}"}
        return {"id": artifact.artifact_id, "currentManifest": {"id": GLOBAL_ID, "file": file}}

    def _artifact(self, artifact_id: str) -> _Artifact:
        artifact = self._artifacts.get(artifact_id)
        if artifact is None:
            raise TrackerError(404, "NOT_FOUND", f"there is no artifact {artifact_id[:80]!a}")
        return artifact

    def _file(self, reporter: Reporter, artifact: _Artifact, name: str) -> Document:
        url, secret = self._address()
        return {
            "id": f"{artifact.artifact_id}/{name}",
            "name": name,
            "displayName": name,
            "uploadUrl": url + _path(artifact, name),
            "uploadHeaders": [f"Authorization: Bearer {tracker_token(secret, reporter)}"],
            "storagePath": None,
            "uploadMultipartUrls": None,
            "artifact": {"id": artifact.artifact_id},
        }


def _path(artifact: _Artifact, name: str) -> str:
    folder = quote(f"{artifact.collection}-v{artifact.version}", safe="")
    return f"{ARTIFACTS}{folder}/{quote(name, safe='')}"


def _input(variables: Document) -> Document:
    fields = variables.get("input")
    return fields if isinstance(fields, dict) else variables


def _no_project(_reporter: Reporter, _variables: Document) -> Document:
    return {"project": None}


def _describe_type(_reporter: Reporter, variables: Document) -> Document:
    """Answer which fields an artifact has, and which its creation takes: clients before 0.23 ask, in three ways."""
    name = str(variables.get("typeName") or variables.get("name") or "Artifact")
    fields = [{"name": field, "args": []} for field in _ARTIFACT_FIELDS] if name == "Artifact" else []
    inputs = [{"name": field} for field in _CREATE_FIELDS] if name == "CreateArtifactInput" else []
    described = {"name": name, "fields": fields, "inputFields": inputs}
    return {"__type": described, "TypeInfo": described, "ArtifactInfoType": described}
