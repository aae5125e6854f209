"""`trainyard export`: which checkpoint, where from, where to, and what goes wrong."""

import hashlib
import json
import os
import signal
import subprocess
import threading

import httpx
import pytest

from tests.support.checkpoints import save_checkpoint
from tests.unit.trainyard.fake_service import TIME, error, job, page
from trainyard.cli import conversion, export
from trainyard.cli.errors import ConversionError
from trainyard.cli.export import split_reference
from trainyard.contract.spec.training_spec import dump_spec, parse_spec
from trainyard.contract.wire.export import ExportUpdate

SPEC = dump_spec(
    parse_spec(
        {
            "task": "causal_lm",
            "steps": 9,
            "model": {"source": "builtin", "name": "llama", "layers": 1, "width": 16, "heads": 2},
            "data": {"source": "builtin", "name": "stdlib"},
        }
    )
)
CHECKPOINTS = "/v1/jobs/a1/checkpoints"


def resource(step, path="/absent", digest="0" * 64, **changes):
    return {
        "id": f"ck{step}",
        "job_id": "a1",
        "step": step,
        "size_bytes": 1000,
        "digest": f"sha256:{digest}",
        "world_size": 1,
        "execution": 1,
        "metrics": {},
        "path": str(path),
        "created_at": TIME,
        **changes,
    }


def digest_of(checkpoint):
    return hashlib.sha256(checkpoint.manifest.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from worker.tasks.builtin_models import build_builtin

    return save_checkpoint(tmp_path_factory.mktemp("run"), build_builtin(parse_spec(SPEC).model), step=7)


@pytest.fixture
def with_job(service, checkpoint):
    """Serve a cancelled job with two checkpoints, of which this machine has the first."""

    def serve(**changes):
        service.on("GET", "/v1/jobs/a1", job("a1", status="cancelled", spec=SPEC | changes))
        here = resource(7, checkpoint.root, digest_of(checkpoint), best=True)
        service.on("GET", CHECKPOINTS, page(here, resource(9, latest=True)))

    return serve


@pytest.fixture
def converted(monkeypatch):
    """Replace the conversion by one that writes a file, and return its requests."""
    requests = []

    def convert(request, *, quiet):
        requests.append(request)
        with open(f"{request.output}/export.json", "w") as file:
            json.dump({"step": request.step}, file)
        return ExportUpdate(phase="done", kind="model", dtype="fp32")

    monkeypatch.setattr(export, "convert", convert)
    return requests


def shell(command, pids=None):
    """Return a Popen that runs a shell's command instead of the conversion."""

    class Shell(subprocess.Popen):
        def __init__(self, _, **options):
            super().__init__(["/bin/sh", "-c", command], **options)
            if pids is not None:
                pids.append(self.pid)

    return Shell


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last", ("last", "latest")),
        ("a1:12", ("a1", "12")),
        ("a1:0012", ("a1", "12")),
        ("my:run:best", ("my:run", "best")),
        ("a1:latest", ("a1", "latest")),
        ("my:run", ("my:run", "latest")),
    ],
)
def test_reference_is_a_job_and_a_checkpoint(text, expected):
    assert split_reference(text) == expected


@pytest.fixture
def interruptible():
    """Raise KeyboardInterrupt on SIGINT, also in a process that was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestConversion:
    @pytest.mark.cpu_seconds(7)
    def test_checkpoint_on_this_machine_becomes_a_model(self, run, with_job, tmp_path):
        with_job()
        done = run("export", "a1:7", "--dtype", "bf16", "--json")
        assert (done.exit_code, done.stderr) == (0, "")
        folder = tmp_path / "a1-step-7-export"
        assert json.loads(done.stdout) == {
            "object": "export",
            "job_id": "a1",
            "step": 7,
            "kind": "model",
            "dtype": "bf16",
            "path": folder.name,
        }
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}
        assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [folder.name]

    def test_error_of_the_conversion_is_printed_and_leaves_nothing(self, run, with_job, tmp_path, monkeypatch):
        with_job()
        update = conversion.ExportUpdate(phase="failed", message="the checkpoint is damaged")
        monkeypatch.setattr(conversion.subprocess, "Popen", shell(f"echo '{update.model_dump_json()}'; exit 1"))
        done = run("export", "a1:best")
        assert (done.exit_code, done.stderr) == (1, "error: the checkpoint is damaged\n")
        assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == []

    def test_interrupt_ends_the_conversion(self, monkeypatch, interruptible):
        pids = []
        monkeypatch.setattr(conversion.subprocess, "Popen", shell("exec sleep 60", pids))
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        request = export.ExportRequest(job_id="a1", step=1, spec={}, checkpoint="", output="")
        with pytest.raises(KeyboardInterrupt):
            conversion.convert(request, quiet=True)
        with pytest.raises(ProcessLookupError):
            os.kill(pids[0], 0)

    def test_killed_conversion_suggests_the_cause(self, monkeypatch):
        monkeypatch.setattr(conversion.subprocess, "Popen", shell("kill -9 $$"))
        request = export.ExportRequest(job_id="a1", step=1, spec={}, checkpoint="", output="")
        with pytest.raises(ConversionError, match="was killed while verifying, probably because this machine has too"):
            conversion.convert(request, quiet=True)


class TestSource:
    def test_checkpoint_of_another_machine_is_downloaded(self, service, run, with_job, converted, checkpoint):
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", spec=SPEC))
        service.on("GET", CHECKPOINTS, page(resource(7, digest=digest_of(checkpoint), latest=True)))
        names = sorted(path.name for path in checkpoint.root.iterdir())
        listed = [{"path": n, "size_bytes": (checkpoint.root / n).stat().st_size, "modified_at": TIME} for n in names]
        service.on("GET", f"{CHECKPOINTS}/ck7/files", page(*listed))
        for name in names:
            content = httpx.Response(200, content=(checkpoint.root / name).read_bytes())
            service.on("GET", f"{CHECKPOINTS}/ck7/files/{name}", content)
        assert run("export", "a1").exit_code == 0
        assert converted[0].checkpoint.endswith("/checkpoint")
        assert converted[0].step == 7

    def test_checkpoint_whose_files_are_gone_is_an_error_of_the_service(self, service, run, with_job, converted):
        with_job()
        gone = error(404, "the checkpoint has no such file", "not_found_error", "file_not_found")
        service.on("GET", f"{CHECKPOINTS}/ck9/files/manifest.json", gone)
        done = run("export", "a1")
        assert (done.exit_code, converted) == (6, [])
        assert done.stderr.startswith("error: the checkpoint has no such file")

    def test_missing_step_lists_those_that_exist(self, run, with_job, converted):
        with_job()
        done = run("export", "a1:8")
        assert (done.exit_code, done.stderr) == (6, "error: there is no checkpoint '8'; available steps: 7, 9\n")

    def test_unknown_name_of_a_checkpoint_lists_the_valid_ones(self, service, run, converted):
        missing = error(404, "there is no job 'lion:first'", "not_found_error", "job_not_found")
        service.on("GET", "/v1/jobs/lion%3Afirst", missing).on("GET", "/v1/jobs", page())
        done = run("export", "lion:first")
        message = "error: there is no job 'lion:first' (after a colon, a checkpoint is a step, `best` or `latest`); "
        assert (done.exit_code, done.stderr) == (6, message + "list them with: trainyard list\n")

    def test_download_that_does_not_fit_the_disk_is_not_started(self, service, run, converted):
        service.on("GET", "/v1/jobs/a1", job("a1", status="failed", spec=SPEC))
        service.on("GET", CHECKPOINTS, page(resource(7, size_bytes=2**60, latest=True)))
        done = run("export", "a1")
        assert done.exit_code == 2
        assert "free; name another folder with --output" in done.stderr
        assert len(service.requests) == 2


class TestTarget:
    def test_existing_folder_is_not_replaced(self, run, with_job, converted, tmp_path):
        with_job()
        (tmp_path / "out").mkdir()
        assert run("export", "a1:7", "--output", "out").exit_code == 0
        done = run("export", "a1:7", "--output", "out")
        assert (done.exit_code, len(converted)) == (2, 1)
        assert "'out' exists already and is not replaced; replace it with --force" in done.stderr

    def test_force_replaces_an_earlier_export_whole(self, run, with_job, converted, tmp_path):
        with_job()
        assert run("export", "a1:7", "--output", "out").exit_code == 0
        (tmp_path / "out" / "adapter_config.json").write_text("{}")
        assert run("export", "a1:7", "--output", "out", "--force").exit_code == 0
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["export.json"]

    def test_force_replaces_no_other_folder(self, run, with_job, converted, tmp_path):
        with_job()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("x")
        done = run("export", "a1:7", "--output", "out", "--force")
        assert (done.exit_code, converted) == (2, [])
        assert (tmp_path / "out" / "thesis.tex").is_file()


class TestRequest:
    @pytest.mark.parametrize(
        ("arguments", "changes", "message"),
        [
            (("--merge",), {}, "--merge is for jobs that train adapters, and job a1 trains the model"),
            (("--base", "x"), {}, "--base is for jobs with a model of source `hf`"),
            ((), {"task": "script"}, "a job of task `script` has no checkpoint of a model"),
        ],
    )
    def test_options_that_do_not_fit_the_job(self, run, with_job, converted, arguments, changes, message):
        with_job(**changes)
        done = run("export", "a1:7", *arguments)
        assert (done.exit_code, done.stderr, converted) == (2, f"error: {message}\n", [])

    def test_missing_packages_are_named_before_anything_is_downloaded(self, run, with_job, converted, monkeypatch):
        with_job(lora_rank=2)
        monkeypatch.setattr(export, "find_spec", lambda name: None if name in ("torch", "peft") else True)
        done = run("export", "a1")
        assert (done.exit_code, converted) == (2, [])
        assert "which lacks torch, peft; install it with: pip install 'trainyard[worker,hf]'" in done.stderr

    def test_merge_is_passed_on(self, run, with_job, converted):
        with_job(lora_rank=2)
        assert run("export", "a1:best", "--merge").exit_code == 0
        assert (converted[0].merge, converted[0].step, converted[0].dtype) == (True, 7, None)


@pytest.mark.parametrize(("status", "suggested"), [("failed", True), ("cancelled", True), ("running", False)])
def test_show_suggests_the_export_of_a_job_that_ended_early(service, run, status, suggested):
    service.on("GET", "/v1/jobs/a1", job("a1", status=status, spec=SPEC, last_checkpoint_step=9))
    assert ("step 9; make a model of it: trainyard export a1" in run("show", "a1").stdout) is suggested
