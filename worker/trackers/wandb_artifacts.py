"""W&B's artifacts (`run.log_artifact`, `run.use_artifact`): operations that store and read them in the job's folder."""

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from worker.trackers.artifacts import ArtifactFolder
from worker.trackers.tracker_requests import Reporter, TrackerError
from worker.trackers.variables import signature_of, tracker_token

ARTIFACTS = "artifacts/"
"""Where uploaded files of artifacts are, below the address and the folder of all uploads."""
GLOBAL_ID = base64.b64encode(b"Trainyard:0").decode()
"""The identifier of everything that exists once. Clients check that it is base64."""
_MANIFEST = "wandb_manifest.json"
_INDEX = f"{ARTIFACTS}index.jsonl"
"""The file with a line for each version, which later attempts of the job read."""
_LATEST = "latest"
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
    entity: str
    project: str
    collection: str
    version: int
    kind: str
    digest: str
    metadata: str | None
    description: str | None
    aliases: tuple[str, ...]
    created: str


class WandbArtifacts:
    """The artifacts of a job: the launcher's own, and the artifacts that earlier attempts committed."""

    def __init__(self, folder: ArtifactFolder, address: Callable[[], tuple[str, str]]) -> None:
        """
        Args:
            address: Returns URL of uploads and secret of the listener.
        """
        self._folder = folder
        self._address = address
        self._lock = threading.Lock()
        self._known: dict[str, _Artifact] | None = None
        self.operations: dict[str, Callable[[Reporter, Document], Document]] = {
            "ArtifactType": self._find_type,
            "InputFields": _describe_type,
            "TypeInfo": _describe_type,
            "ProbeServerArtifact": _describe_type,
            "ArtifactByID": self._describe,
            "ArtifactByIDShort": self._describe,
            "ArtifactByName": self._find,
            "ArtifactMembershipByName": self._find_membership,
            "UseArtifact": self._use,
            "ProbeServerProjectInfo": _describe_nothing,
            "ProbeServerUseArtifactInput": _describe_nothing,
            "ArtifactFileURLs": self._list_files,
            "ArtifactFileUrls": self._list_files,
            "GetArtifactFileUrls": self._list_files,
            "GetArtifactMembershipFileUrls": self._list_files_of_membership,
            "ArtifactManifest": self._find_manifest,
            "FetchArtifactManifest": self._get_manifest,
            "CreateArtifact": self._create,
            "CreateArtifactManifest": self._create_manifest,
            "UpdateArtifactManifest": self._update_manifest,
            "CreateArtifactFiles": self._create_files,
            "CommitArtifact": self._commit,
        }

    @property
    def _artifacts(self) -> dict[str, _Artifact]:
        with self._lock:
            if self._known is None:
                known = map(_parse_line, self._folder.lines(_INDEX))
                self._known = {artifact.artifact_id: artifact for artifact in known if artifact}
            return self._known

    def _create(self, _reporter: Reporter, variables: Document) -> Document:
        fields = _input(variables)
        if len(self._artifacts) >= _MAX_ARTIFACTS:
            raise TrackerError(400, "INVALID_STATE", f"a program may have at most {_MAX_ARTIFACTS} artifacts")
        name = str(fields.get("artifactCollectionName") or "artifact")
        version = self._reserve_version(name)
        artifact_id = base64.b64encode(f"Artifact:{name}-v{version}".encode()).decode()
        aliases = [one.get("alias") for one in fields.get("aliases") or () if isinstance(one, dict)]
        self._artifacts[artifact_id] = _Artifact(
            artifact_id,
            str(fields.get("entityName") or ""),
            str(fields.get("projectName") or ""),
            name,
            version,
            kind=str(fields.get("artifactTypeName") or ""),
            digest=str(fields.get("digest") or ""),
            metadata=_text(fields.get("metadata")),
            description=_text(fields.get("description")),
            aliases=tuple(str(alias) for alias in aliases if alias),
            created=datetime.now(UTC).isoformat(),
        )
        sequence = {"id": name, "latestArtifact": None}
        return {"createArtifact": {"artifact": {"id": artifact_id, "state": "PENDING", "artifactSequence": sequence}}}

    def _reserve_version(self, collection: str) -> int:
        """Return a version that no artifact of any attempt and node has; its folder is made."""
        versions = (one.version for one in list(self._artifacts.values()) if one.collection == collection)
        version = max(versions, default=-1) + 1
        while not self._folder.reserve_folder(_folder(collection, version)):
            version += 1
        return version

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
        self._folder.append_line(_INDEX, asdict(artifact))
        return {"commitArtifact": {"artifact": {"id": artifact.artifact_id, "digest": artifact.digest}}}

    def _use(self, _reporter: Reporter, variables: Document) -> Document:
        return {"useArtifact": {"artifact": self._document(self._artifact(str(_input(variables).get("artifactID"))))}}

    def _describe(self, _reporter: Reporter, variables: Document) -> Document:
        return {"artifact": self._document(self._artifact(str(variables.get("id"))))}

    def _find(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._named(variables)
        return {"project": {"artifact": artifact and self._document(artifact)}}

    def _find_membership(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._named(variables)
        return {"project": {"artifactCollectionMembership": artifact and self._membership(artifact)}}

    def _find_type(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._named(variables)
        return {"project": artifact and {"artifact": {"artifactType": {"name": artifact.kind}}}}

    def _named(self, variables: Document) -> _Artifact | None:
        """Return the artifact of a name such as `model:v0`, `model:best` or `model:latest`; None if there is none."""
        collection, _, version = str(variables.get("name")).partition(":")
        artifacts = [one for one in list(self._artifacts.values()) if one.collection == collection]
        named = [one for one in artifacts if version == f"v{one.version}" or version in one.aliases]
        newest = artifacts if version in ("", _LATEST) else named
        return newest[-1] if newest else None

    def _membership(self, artifact: _Artifact) -> Document:
        return {
            "__typename": "ArtifactCollectionMembership",
            "id": artifact.artifact_id,
            "versionIndex": artifact.version,
            "createdAt": artifact.created,
            "aliases": self._aliases(artifact),
            "artifactCollection": _collection(artifact),
            "artifact": self._document(artifact),
        }

    def _aliases(self, artifact: _Artifact) -> list[Document]:
        """Return the aliases of a version that no newer version of the collection has taken over."""
        own = dict.fromkeys((*artifact.aliases, _LATEST))
        aliases = [alias for alias in own if self._named({"name": f"{artifact.collection}:{alias}"}) == artifact]
        fields = {"__typename": "ArtifactAlias", "id": GLOBAL_ID, "artifactCollection": _collection(artifact)}
        return [fields | {"alias": alias} for alias in aliases]

    def _document(self, artifact: _Artifact) -> Document:
        contents = self._contents(artifact)
        fields = {
            "__typename": "Artifact",
            "id": artifact.artifact_id,
            "artifactSequence": _collection(artifact),
            "versionIndex": artifact.version,
            "artifactType": {"name": artifact.kind},
            "description": artifact.description,
            "metadata": artifact.metadata,
            "ttlDurationSeconds": -1,
            "ttlIsInherited": False,
            "state": "COMMITTED",
            "digest": artifact.digest,
            "createdAt": artifact.created,
            "aliases": self._aliases(artifact),
            "size": sum(one["size"] for one in contents.values() if isinstance(one.get("size"), int)),
            "fileCount": len(contents),
        }
        return fields | dict.fromkeys(("historyStep", "commitHash", "updatedAt", "currentManifest")) | {"tags": []}

    def _contents(self, artifact: _Artifact) -> dict[str, Document]:
        """Return the entries of the manifest by name; none before the client has sent it."""
        try:
            contents = self._folder.read_json(_path(artifact, _MANIFEST)).get("contents")
        except TrackerError:
            return {}
        return {name: one for name, one in contents.items() if isinstance(one, dict)} if contents else {}

    def _list_files(self, _reporter: Reporter, variables: Document) -> Document:
        return {"artifact": {"files": self._files(self._artifact(str(variables.get("id"))))}}

    def _list_files_of_membership(self, _reporter: Reporter, variables: Document) -> Document:
        artifact = self._named({"name": f"{variables.get('collection')}:{variables.get('alias')}"})
        membership = artifact and {"files": self._files(artifact)}
        collection = {"__typename": "ArtifactSequence", "artifactMembership": membership}
        return {"project": {"artifactCollection": collection}}

    def _files(self, artifact: _Artifact) -> Document:
        """Return all uploaded files of an artifact with their addresses, as a single page."""
        names = [name for name, one in self._contents(artifact).items() if "ref" not in one]
        nodes = [{"__typename": "File", "name": name, "directUrl": self._signed(artifact, name)} for name in names]
        page = {"__typename": "PageInfo", "hasNextPage": False, "endCursor": None}
        return {"pageInfo": page, "edges": [{"node": node} for node in nodes]}

    def _find_manifest(self, _reporter: Reporter, variables: Document) -> Document:
        """Answer where the manifest of an artifact is, by the artifact's name."""
        artifact = self._named(variables)
        return {"project": {"artifact": artifact and self._address_of_manifest(artifact)}}

    def _get_manifest(self, reporter: Reporter, variables: Document) -> Document:
        if "name" in variables:  # as clients of 0.22 ask
            return self._find_manifest(reporter, variables)
        return {"artifact": self._address_of_manifest(self._artifact(str(variables.get("id"))))}

    def _address_of_manifest(self, artifact: _Artifact) -> Document:
        file = {"id": GLOBAL_ID, "directUrl": self._signed(artifact, _MANIFEST)}
        return {"id": artifact.artifact_id, "currentManifest": {"id": GLOBAL_ID, "file": file}}

    def _signed(self, artifact: _Artifact, name: str) -> str:
        """Return the address of a file that a client reads without its token."""
        url, secret = self._address()
        path = _path(artifact, name)
        return f"{url}{path}?signature={signature_of(secret, urlsplit(url + path).path)}"

    def _artifact(self, artifact_id: str) -> _Artifact:
        artifact = self._artifacts.get(artifact_id)
        if artifact is None:
            raise TrackerError(404, "NOT_FOUND", f"there is no artifact {artifact_id[:80]!r}")
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
    return f"{_folder(artifact.collection, artifact.version)}/{quote(name, safe='')}"


def _folder(collection: str, version: int) -> str:
    return ARTIFACTS + quote(f"{collection}-v{version}", safe="")


def _input(variables: Document) -> Document:
    fields = variables.get("input")
    return fields if isinstance(fields, dict) else variables


def _collection(artifact: _Artifact) -> Document:
    project: Document = {"id": GLOBAL_ID, "internalId": GLOBAL_ID, "name": artifact.project}
    project |= {"entityName": artifact.entity, "entity": {"name": artifact.entity}}
    return {"__typename": "ArtifactSequence", "name": artifact.collection, "project": project}


def _parse_line(line: bytes) -> _Artifact | None:
    """Return the artifact of a line of the index; None for a line that a killed launcher has damaged."""
    try:
        fields = json.loads(line)
        return _Artifact(**{**fields, "aliases": tuple(fields["aliases"])})
    except (ValueError, TypeError, KeyError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _describe_nothing(_reporter: Reporter, _variables: Document) -> Document:
    """Answer that artifacts are read without optional arguments, to clients before 0.23."""
    return {"ProjectInfoType": {"fields": []}, "UseArtifactInputInfoType": {"inputFields": []}}


def _describe_type(_reporter: Reporter, variables: Document) -> Document:
    """Answer which fields an artifact has, and which its creation takes: clients before 0.23 ask, in three ways."""
    name = str(variables.get("typeName") or variables.get("name") or "Artifact")
    fields = [{"name": field, "args": []} for field in _ARTIFACT_FIELDS] if name == "Artifact" else []
    inputs = [{"name": field} for field in _CREATE_FIELDS] if name == "CreateArtifactInput" else []
    described = {"name": name, "fields": fields, "inputFields": inputs}
    return {"__type": described, "TypeInfo": described, "ArtifactInfoType": described}
