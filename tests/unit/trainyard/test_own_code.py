"""Code of a spec is packed and uploaded once; artifacts are downloaded whole."""

import asyncio
import json
import os
import threading

import httpx
import pytest
import yaml

from tests.unit.trainyard.fake_service import TIME, error, job, page
from trainyard.client import NotFoundError, PermissionDeniedError
from trainyard.client.code_archive import pack
from trainyard.contract.spec.templates import code_folder

SCRIPT = {"task": "script", "argv": ["train.py", "--lr", "1"]}
CUSTOM = {"task": "custom", "target": "my.task:build", "steps": 3}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "mine"
    (made / "my").mkdir(parents=True)
    (made / "train.py").write_text("print(1)")
    (made / "my" / "task.py").write_text("def build(spec): ...")
    return made


@pytest.fixture
def code(folder):
    return f"/v1/code/{pack(folder).digest}"


def sent_spec(service):
    return json.loads(service.requests[-1].content)


class TestClient:
    def test_code_is_uploaded_before_the_spec_that_names_it(self, service, folder, code):
        service.on("HEAD", code, httpx.Response(404)).on("PUT", code, {}).on("POST", "/v1/jobs", job())
        service.client().submit(SCRIPT, code=folder)
        assert [request.method for request in service.requests] == ["HEAD", "PUT", "POST"]
        assert service.requests[1].content == pack(folder).data
        assert sent_spec(service) == {**SCRIPT, "code": pack(folder).digest}

    def test_stored_code_is_not_uploaded_again(self, service, folder, code):
        service.on("HEAD", code, {}).on("POST", "/v1/jobs", job())
        asyncio.run(service.async_client().submit(yaml.safe_dump(SCRIPT), code=folder))
        assert [request.method for request in service.requests] == ["HEAD", "POST"]
        assert sent_spec(service)["code"] == pack(folder).digest

    def test_insufficient_role_prevents_the_submission(self, service, folder, code):
        refused = error(403, "takes a token with the role admin", "permission_error", "code_role_required")
        service.on("HEAD", code, httpx.Response(404)).on("PUT", code, refused)
        with pytest.raises(PermissionDeniedError, match="role admin"):
            service.client().submit(SCRIPT, code=folder)

    def test_partial_artifact_download_leaves_no_file(self, service, tmp_path):
        url = "/v1/jobs/a1/artifacts/traces/rank 0.json"
        broken = httpx.ReadError("cut off")
        service.on("GET", url, httpx.Response(200, content=b"{}"), broken, error(404, "no artifact", "not_found_error"))
        target = service.client().download_artifact("a1", "traces/rank 0.json", tmp_path / "deep" / "trace")
        assert target.read_bytes() == b"{}"
        for _ in range(2):
            with pytest.raises(Exception, match=r"cut off|no artifact"):
                service.client().download_artifact("a1", "traces/rank 0.json", tmp_path / "other")
        assert not (tmp_path / "other").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["deep"]


class TestSweepCommand:
    def test_all_members_get_the_code_of_the_spec_folder(self, service, run, folder):
        digest = pack(folder).digest
        (folder / "spec.yaml").write_text(yaml.safe_dump(CUSTOM))
        service.on("HEAD", f"/v1/code/{digest}", httpx.Response(404)).on("PUT", f"/v1/code/{digest}", {})
        run("sweep", str(folder / "spec.yaml"), "--grid", "seed=1,2")
        assert [request.method for request in service.requests] == ["HEAD", "PUT", "POST"]
        assert sent_spec(service)["spec"] == {**CUSTOM, "code": digest}

    def test_missing_program_is_not_submitted(self, service, run, tmp_path):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SCRIPT))
        result = run("sweep", str(tmp_path / "spec.yaml"), "--grid", "gpus=1,2")
        assert (result.exit_code, service.requests) == (2, [])
        assert "name its folder with --code" in result.stderr


class TestSubmitCommand:
    def test_spec_is_read_from_a_pipe(self, service, run, tmp_path):
        service.on("POST", "/v1/jobs", job())
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=("task: regression\n",))
        writer.start()
        assert run("submit", str(pipe)).exit_code == 0
        writer.join()
        assert sent_spec(service) == {"task": "regression"}

    @pytest.mark.parametrize("spec", [SCRIPT, CUSTOM], ids=["script", "custom"])
    def test_spec_folder_is_uploaded_if_it_has_the_program(self, service, run, folder, spec):
        digest = pack(folder).digest
        service.on("HEAD", f"/v1/code/{digest}", {}).on("POST", "/v1/jobs", job())
        for steps in (3, 4):
            (folder / "spec.yaml").write_text(yaml.safe_dump({**spec, "steps": steps}))
            assert run("submit", str(folder / "spec.yaml")).exit_code == 0
            assert sent_spec(service)["code"] == digest, "the spec file is not part of the code"

    def test_other_folders_need_the_code_option(self, service, run, folder, code, tmp_path):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SCRIPT))
        service.on("HEAD", code, {}).on("POST", "/v1/jobs", job())
        refused = run("submit", "spec.yaml")
        assert refused.exit_code == 2
        assert "argv: there is no file 'train.py' in" in refused.output
        assert run("submit", "spec.yaml", "--code", str(folder)).exit_code == 0
        assert sent_spec(service)["code"] == pack(folder).digest

    def test_code_of_a_preset_is_uploaded(self, service, run):
        preset = {"object": "template", "name": "p", "description": "", "spec": {**SCRIPT, "argv": ["train_line.py"]}}
        digest = pack(code_folder()).digest
        service.on("GET", "/v1/templates/p", preset).on("HEAD", f"/v1/code/{digest}", {})
        service.on("POST", "/v1/jobs", job())
        assert run("submit", "p").exit_code == 0
        assert sent_spec(service)["code"] == digest

    def test_packing_error_is_one_line(self, run, folder):
        (folder / "spec.yaml").write_text(yaml.safe_dump(SCRIPT))
        (folder / "out").symlink_to("/etc")
        done = run("submit", str(folder / "spec.yaml"))
        assert (done.exit_code, done.stderr) == (
            2,
            "code: 'out' is a link that leads out of the folder; exclude it with .trainyardignore, and let the program "
            "read '/etc' by this path if the nodes have it\n",
        )


class TestArtifactsCommand:
    ARTIFACTS = page(
        {"object": "artifact", "path": "table.json", "size_bytes": 1500, "modified_at": TIME},
        {"object": "artifact", "path": "traces/0.json", "size_bytes": 2, "modified_at": TIME},
    )

    def prepare(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("GET", "/v1/jobs/a1/artifacts", self.ARTIFACTS)
        for path, content in (("table.json", b"[]"), ("traces/0.json", b"{}")):
            service.on("GET", f"/v1/jobs/a1/artifacts/{path}", httpx.Response(200, content=content))

    def test_artifacts_are_listed(self, service, run):
        self.prepare(service)
        assert [line.split()[:3] for line in run("artifacts", "a1").stdout.splitlines()[1:]] == [
            ["table.json", "1.46", "KiB"],
            ["traces/0.json", "2", "B"],
        ]
        first = json.loads(run("artifacts", "a1", "--json").stdout.splitlines()[0])
        assert (first["path"], first["size_bytes"]) == ("table.json", 1500)

    def test_artifacts_are_downloaded_with_their_folders(self, service, run, tmp_path):
        self.prepare(service)
        assert run("artifacts", "a1", "--all", "--to", "got").stdout.splitlines() == [
            "got/table.json",
            "got/traces/0.json",
        ]
        assert (tmp_path / "got" / "traces" / "0.json").read_bytes() == b"{}"
        assert run("artifacts", "a1", "--download", "table.json").stdout == "a1-artifacts/table.json\n"
        assert (tmp_path / "a1-artifacts" / "table.json").read_bytes() == b"[]"

    @pytest.mark.parametrize(
        "command",
        [
            ("artifacts", "a1", "--all", "--to", "."),
            ("artifacts", "a1", "--download", "table.json", "--to", "."),
            ("download", "a1", "--artifact", "table.json", "--to", "."),
        ],
    )
    def test_existing_files_are_replaced_only_with_force(self, service, run, tmp_path, command):
        self.prepare(service)
        (tmp_path / "table.json").write_text("mine")
        done = run(*command)
        assert (done.exit_code, done.stderr) == (
            2,
            "error: 'table.json' exists already and is not replaced; "
            "replace it with --force, or name another folder with --to\n",
        )
        assert (tmp_path / "table.json").read_text() == "mine"
        assert run(*command, "--force").exit_code == 0
        assert (tmp_path / "table.json").read_bytes() == b"[]"

    @pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ".git/config", "a/.b/c", ".envrc", "a\\x"])
    def test_paths_outside_the_target_are_rejected(self, service, run, path):
        self.prepare(service)
        hostile = page({"object": "artifact", "path": path, "size_bytes": 1, "modified_at": TIME})
        service.answers["GET", "/v1/jobs/a1/artifacts"].clear()
        service.on("GET", "/v1/jobs/a1/artifacts", hostile)
        for options in (["--download", path], ["--all"]):
            done = run("artifacts", "a1", *options)
            assert (done.exit_code, done.stderr) == (2, f"error: {path!r} is not the path of an artifact\n")

    def test_unknown_artifact_is_not_found(self, service, run):
        self.prepare(service)
        assert run("artifacts", "a1", "--download", "nope").exit_code == 6
        with pytest.raises(NotFoundError):
            service.client().download_artifact("a1", "nope", "nope")


COMM = {
    "id": "e1",
    "job_id": "a1",
    "type": "worker.comm_check",
    "level": "info",
    "message": "",
    "created_at": TIME,
    "data": {
        "backend": "gloo",
        "operations": [
            {"operation": "barrier", "size_bytes": 0, "seconds": 2e-5, "bus_bytes_per_second": None},
            {"operation": "broadcast", "size_bytes": 16777216, "seconds": 0.02, "bus_bytes_per_second": 8.4e8},
        ],
        "slowest_pair": {"group": "0-3", "size_bytes": 16777216, "bus_bytes_per_second": 5e8},
        "not_in_backend": {"world": ["reduce_scatter"]},
    },
}


def test_show_prints_the_results_of_a_comm_check(service, run):
    service.on("GET", "/v1/jobs/a1", job("a1", spec={"task": "comm_check"}))
    service.on("GET", "/v1/jobs/a1/events", page(COMM))
    shown = [line.split() for line in run("show", "a1").stdout.splitlines()]
    assert ["barrier", "-", "20.0", "us", "-"] in shown
    assert ["broadcast", "16", "MiB", "20.00", "ms", "0.84", "GB/s"] in shown
    assert ["slowest", "pair:", "0-3,", "0.5", "GB/s", "at", "16", "MiB"] in shown
    assert ["not", "in", "backend", "gloo", "(world):", "reduce_scatter"] in shown
