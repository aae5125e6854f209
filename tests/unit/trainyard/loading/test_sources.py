"""Which folder a job's model is in: downloaded once, verified, used in place where this machine has it."""

import hashlib
import json
from pathlib import Path

import httpx
import pytest

import trainyard
from tests.support.checkpoints import save_checkpoint
from tests.support.exports import make_export, spec_of, trained_module
from tests.unit.trainyard.fake_service import TIME, job, page
from trainyard.client.errors import ConflictError, NotFoundError, ServerError
from trainyard.contract.spec.training_spec import dump_spec
from trainyard.contract.wire.exported import ExportNote
from trainyard.loading.sources import is_folder

SPEC = dump_spec(spec_of("mlp"))
FILES = "/v1/jobs/a1/export/files"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return make_export(tmp_path_factory.mktemp("made"), spec_of("mlp"), trained_module(spec_of("mlp")))


@pytest.fixture
def served(service, export):
    """Serve a job with an export; files may be replaced."""

    def serve(run_directory="/nowhere", **replaced):
        contents = {path.name: path.read_bytes() for path in export.iterdir()}
        contents |= {name.replace("__", "."): data for name, data in replaced.items()}
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded", spec=SPEC, run_directory=str(run_directory)))
        listed = [
            {"id": name, "path": name, "size_bytes": len(data), "modified_at": TIME}
            for name, data in sorted(contents.items())
        ]
        service.on("GET", FILES, page(*listed))
        for name, data in contents.items():
            service.on("GET", f"{FILES}/{name}", httpx.Response(200, content=data, headers={"ETag": '"x"'}))
        return service.client()

    return serve


def cached_folders(tmp_path):
    return [path for path in (tmp_path / "home" / ".cache" / "trainyard" / "models").iterdir() if path.is_dir()]


def downloads(service):
    return [request.url.path for request in service.requests if request.url.path.startswith(f"{FILES}/")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [(Path("x"), True), ("./x", True), ("~/x", True), ("a/b", True), ("last", False), ("my run@prod", False)],
)
def test_text_with_a_slash_is_a_folder(source, expected):
    assert is_folder(source) is expected


class TestExports:
    def test_second_load_downloads_only_the_description(self, service, served, export, tmp_path):
        client = served()
        first = trainyard.load("a1", client=client)
        note = (export / "export.json").read_bytes()
        assert {path.rpartition("/")[2] for path in downloads(service)} == {path.name for path in export.iterdir()}
        (folder,) = cached_folders(tmp_path)
        assert folder.name == hashlib.sha256(note).hexdigest()
        service.requests.clear()
        second = trainyard.load("a1", client=client)
        assert downloads(service) == [f"{FILES}/export.json"]
        state = first.model.state_dict()
        assert all(state[name].equal(value) for name, value in second.model.state_dict().items())

    def test_damaged_file_in_the_cache_is_an_error_once(self, served, tmp_path):
        client = served()
        trainyard.load("a1", client=client)
        (folder,) = cached_folders(tmp_path)
        (folder / "model.safetensors").write_bytes(b"x")
        with pytest.raises(trainyard.LoadError, match="get the export again"):
            trainyard.load("a1", client=client)
        trainyard.load("a1", client=client)

    def test_file_that_differs_from_the_description_is_not_accepted(self, served, export, tmp_path):
        data = (export / "model.safetensors").read_bytes()
        with pytest.raises(ServerError, match="different digest"):
            trainyard.load("a1", client=served(model__safetensors=data[:-1] + b"\0"))
        assert [folder.name[0] for folder in cached_folders(tmp_path)] == ["."]

    def test_interrupted_download_is_continued(self, service, served, tmp_path):
        client = served()
        service.answers["GET", f"{FILES}/model.safetensors"].appendleft(httpx.Response(403, json={}))
        with pytest.raises(trainyard.client.TrainyardError):
            trainyard.load("a1", client=client)
        service.requests.clear()
        trainyard.load("a1", client=client)
        assert f"{FILES}/config.json" not in downloads(service)

    def test_export_on_this_machine_is_used_where_it_is(self, service, served, export, tmp_path):
        trainyard.load("a1", client=served(run_directory=export.parent))
        assert downloads(service) == [f"{FILES}/export.json"]
        assert not (tmp_path / "home" / ".cache").exists()

    def test_files_that_the_description_does_not_name_are_not_downloaded(self, service, served):
        trainyard.load("a1", client=served(left_over="x", pytorch_model__bin=b"pickle"))
        assert not {f"{FILES}/left_over", f"{FILES}/pytorch_model.bin"} & {*downloads(service)}

    def test_export_of_an_earlier_release(self, served, export):
        note = ExportNote.model_validate_json((export / "export.json").read_bytes()).model_copy(update={"files": {}})
        with pytest.raises(trainyard.LoadError, match="written by an earlier release, without digests"):
            trainyard.load("a1", client=served(export__json=note.model_dump_json().encode()))

    def test_job_without_an_export(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1", status="running", spec=SPEC))
        service.on("GET", FILES, page())
        with pytest.raises(
            ConflictError, match="has status running and has no export; download one of its checkpoints"
        ):
            trainyard.load("a1", client=service.client())

    def test_job_of_a_program(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1", status="succeeded", spec={"task": "script"}))
        with pytest.raises(trainyard.LoadError, match="task `script` has no model"):
            trainyard.load("a1", client=service.client())

    def test_cache_that_cannot_be_written(self, served, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "file"))
        with pytest.raises(trainyard.LoadError, match="name another folder with TRAINYARD_CACHE_DIR"):
            trainyard.load("a1", client=served())


class TestCheckpoints:
    @pytest.fixture
    def client(self, service, tmp_path):
        """Serve a failed job with a checkpoint on this machine."""
        spec = spec_of("gpt")
        self.module = trained_module(spec)
        checkpoint = save_checkpoint(tmp_path / "run", self.module)
        digest = hashlib.sha256(checkpoint.manifest.read_bytes()).hexdigest()
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", spec=dump_spec(spec)))
        resource = {"id": "ck7", "job_id": "a1", "step": 7, "size_bytes": 1, "digest": f"sha256:{digest}"}
        resource |= {"world_size": 1, "execution": 1, "metrics": {}, "path": str(checkpoint.root), "created_at": TIME}
        service.on("GET", "/v1/jobs/a1/checkpoints", page(resource | {"best": True, "latest": True}))
        return service.client()

    @pytest.mark.parametrize("reference", ["best", "latest", 7])
    def test_checkpoint_is_converted_once(self, client, tmp_path, reference, monkeypatch):
        model, _ = trainyard.load("a1", checkpoint=reference, client=client)
        assert model.state_dict()["transformer.wte.weight"].equal(self.module.embedding.weight)
        monkeypatch.setattr("worker.export.checkpoint.export_checkpoint", None)
        trainyard.load("a1", checkpoint=reference, client=client)
        assert json.loads((cached_folders(tmp_path)[0] / "export.json").read_text())["step"] == 7

    def test_unknown_checkpoint_is_answered_with_the_steps(self, client):
        with pytest.raises(NotFoundError, match="no checkpoint '8'; use `best`, `latest` or a step: 7"):
            trainyard.load("a1", checkpoint=8, client=client)

    def test_refused_conversion_leaves_nothing(self, client, tmp_path):
        (tmp_path / "run" / "step-0000000007" / "__0_0.distcp").write_bytes(b"x")
        with pytest.raises(trainyard.LoadError, match="the checkpoint is damaged"):
            trainyard.load("a1", checkpoint="best", client=client)
        assert [folder.name[0] for folder in cached_folders(tmp_path)] == ["."]
