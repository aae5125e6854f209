"""The diagnostics behind `trainyard doctor`, on real folders and a real database."""

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse

import pytest

from service.core.settings import Settings
from service.db.migrate import upgrade
from service.diagnostics.checks import containers, run_checks
from service.diagnostics.slurm_checks import controller_finding
from tests.support.live_world import served
from tests.support.world import World
from trainyard.contract.wire.diagnostics import Finding


@pytest.fixture
def settings(migrated_sqlite: Path, tmp_path: Path) -> Settings:
    result = Settings(state_dir=tmp_path / "state", accelerator="cpu", low_disk_gb=0, port=1)
    result.runs.mkdir(parents=True)
    shutil.copy(migrated_sqlite, result.state / "trainyard.sqlite")
    (result.state / "admin_token").touch(mode=0o600)
    return result


def findings_by_name(settings: Settings) -> dict[str, Finding]:
    return {finding.name: finding for finding in run_checks(settings)}


def error_names(settings: Settings) -> set[str]:
    return {name for name, finding in findings_by_name(settings).items() if finding.state == "error"}


def test_only_the_unreachable_service_is_an_error(settings: Settings) -> None:
    assert error_names(settings) == {"route"}
    assert all(finding.fix for finding in findings_by_name(settings).values() if finding.state != "ok")


def test_variables_without_effect_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_FOO_BAR", "1")
    finding = findings_by_name(settings)["variables"]
    assert (finding.state, finding.message) == ("warning", "no setting, and without effect: TRAINYARD_FOO_BAR")
    monkeypatch.setenv("TRAINYARD_RUN_DIR", "/runs")
    finding = findings_by_name(settings)["variables"]
    assert finding.state == "error"
    assert "TRAINYARD_RUN_DIR; did you mean TRAINYARD_RUNS_DIR?" in finding.message


def test_readable_token_file_is_reported(settings: Settings) -> None:
    token = settings.state / "admin_token"
    token.chmod(0o644)
    assert findings_by_name(settings)["tokens"].fix == f"chmod 600 {token}"


def test_outdated_schema_is_reported(settings: Settings) -> None:
    (settings.state / "trainyard.sqlite").unlink()
    upgrade(settings.url, "0003")
    finding = findings_by_name(settings)["migrations"]
    assert (finding.state, finding.fix) == ("error", "run: python -m service migrate")
    assert "0003" in finding.message


def test_missing_database_is_reported_and_not_created(settings: Settings) -> None:
    database = settings.state / "trainyard.sqlite"
    database.unlink()
    assert {"database", "migrations"} <= error_names(settings)
    assert not database.exists()


def test_missing_runs_directory_is_reported(settings: Settings) -> None:
    settings.runs.rmdir()
    assert {"runs", "disk"} <= error_names(settings)


def test_low_disk_space_is_reported(settings: Settings) -> None:
    assert "disk" in error_names(settings.model_copy(update={"low_disk_gb": 1e9}))


def test_missing_gpus_are_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpu = findings_by_name(settings.model_copy(update={"accelerator": "cuda"}))["gpu"]
    assert gpu.state == "error"
    assert "TRAINYARD_ACCELERATOR" in gpu.message
    assert findings_by_name(settings)["gpu"].state == "ok"


def test_slurm_checks_report_missing_commands_and_loopback_url(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    findings = findings_by_name(settings.model_copy(update={"backend": "slurm"}))
    assert findings["slurm"].state == "error"
    assert findings["route"].fix == "set TRAINYARD_PUBLIC_URL"


def test_missing_interpreter_on_the_shared_filesystem_is_an_error(settings: Settings) -> None:
    python = settings.runs.parent / "venv" / "bin" / "python"
    slurm = settings.model_copy(update={"backend": "slurm", "slurm_python": python})
    assert findings_by_name(slurm)["python"].state == "error"
    elsewhere = slurm.model_copy(update={"slurm_python": Path("/opt/nowhere/python")})
    assert findings_by_name(elsewhere)["python"].state == "warning"
    python.parent.mkdir(parents=True)
    python.symlink_to("/of/the/nodes/python3")
    assert findings_by_name(slurm)["python"].state == "ok"
    assert f"srun -N1 {python}" in findings_by_name(slurm)["python"].message


@pytest.mark.parametrize(("version", "state"), [("3 11 2", "warning"), ("3 99 0", "ok"), ("none", "ok")])
def test_doctor_warns_of_workers_without_security_fixes(settings: Settings, version: str, state: str) -> None:
    python = settings.runs.parent / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    slurm = settings.model_copy(update={"backend": "slurm", "slurm_python": python})
    finding = findings_by_name(slurm)["python"]
    assert finding.state == state, finding
    assert ("CVE-2024-7592" in finding.message) == (state == "warning")


def test_munge_error_differs_from_an_unreachable_controller() -> None:
    unknown = controller_finding(1, "sinfo: error: x\nslurm_load_partitions: Protocol authentication error\n")
    assert (unknown.name, unknown.state) == ("munge", "error")
    away = controller_finding(1, "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    assert (away.name, away.state) == ("slurmctld", "error")


def test_untrusted_certificate_has_its_own_fix(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def distrust(*_args: object, **_options: object) -> None:
        raise URLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    monkeypatch.setattr("service.diagnostics.checks.urlopen", distrust)
    assert "authority" in (findings_by_name(settings)["route"].fix or "")


def test_a_page_and_its_style_load_by_the_address_of_the_service(settings: Settings, world: World) -> None:
    with served(world) as url:
        findings = findings_by_name(settings.model_copy(update={"public_url": url}))
        assert findings["route"].message == f"{url} answers from here"
        assert (findings["pages"].state, findings["pages"].message) == ("ok", f"a page and its style load by {url}")


@pytest.mark.parametrize(
    ("page", "style", "state", "problem"),
    [
        ("<h1>It works</h1>", "", "warning", "another program answers, or a portal wants a sign-in"),
        (
            '<link rel="stylesheet" href="/static/a.css">',
            "404 Not Found",
            "error",
            "/static/a.css of a page does not load",
        ),
        ('<link rel="stylesheet" href="/static/a.css">', "200 OK", "error", "a.css of a page is answered as text/html"),
    ],
)
def test_a_proxy_that_loses_paths_is_reported(
    settings: Settings, page: str, style: str, state: str, problem: str
) -> None:
    def proxy(environ: dict[str, str], start: StartResponse) -> list[bytes]:
        start(style if environ["PATH_INFO"].startswith("/static") else "200 OK", [("Content-Type", "text/html")])
        return [page.encode()]

    with make_server("127.0.0.1", 0, proxy, handler_class=QuietHandler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            finding = findings_by_name(settings.model_copy(update={"public_url": url}))["pages"]
        finally:
            server.shutdown()
            thread.join()
    assert (finding.state, problem in finding.message) == (state, True), finding


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("lacks", "shared", "state"), [("", 1, "ok"), ("torch worker", 1, "error"), ("torch worker", 0, "warning")]
)
def test_interpreter_without_the_worker_is_reported(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, lacks: str, shared: int, state: str
) -> None:
    # Where folders are not shared, the nodes may have another interpreter at this path.
    folder = settings.runs.parent if shared else tmp_path_factory.mktemp("local")
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho 3 99 0 {lacks}\n")
    python.chmod(0o755)
    finding = findings_by_name(settings.model_copy(update={"backend": "slurm", "slurm_python": python}))["python"]
    assert (finding.state, "has no torch and no worker" in finding.message) == (state, state != "ok")


def test_own_interpreter_has_the_worker(settings: Settings) -> None:
    slurm = settings.model_copy(update={"backend": "slurm", "slurm_python": Path(sys.executable)})
    assert "has no" not in findings_by_name(slurm)["python"].message


@pytest.mark.cpu_seconds(5)
def test_command_prints_json_lines_and_exits_with_1(settings: Settings) -> None:
    environment = os.environ | {"TRAINYARD_STATE_DIR": str(settings.state), "TRAINYARD_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "service", "doctor"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert {json.loads(line)["name"] for line in done.stdout.splitlines()} >= {"database", "runs", "route"}


def test_doctor_route_requires_an_administrator(world: World) -> None:
    answer = world.client.get("/v1/doctor")
    assert answer.status_code == 200
    assert {"database", "runs", "route"} <= {finding["name"] for finding in answer.json()["findings"]}
    assert world.new_user("user", "anna").get("/v1/doctor").status_code == 403


def test_doctor_route_does_not_call_slurmctld(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} $* >> {calls}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    slurm = settings.model_copy(update={"backend": "slurm"})
    list(run_checks(slurm, query_scheduler=False))
    assert calls.read_text() == "sbatch --version\n"
    assert "slurmctld" in {finding.name for finding in run_checks(slurm)}


@pytest.mark.parametrize(("patch", "state"), [(7, "warning"), (99, "ok")])
def test_interpreter_without_security_fixes_is_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, patch: int, state: str
) -> None:
    monkeypatch.setattr("service.diagnostics.checks.sys.version_info", (3, 11, patch, "final", 0))
    finding = findings_by_name(settings)["interpreter"]
    assert finding.state == state
    assert ("CVE-2025-8194" in finding.message) == (state == "warning")


def test_key_file_of_the_settings_is_checked(settings: Settings, tmp_path: Path) -> None:
    assert findings_by_name(settings)["secrets"].message == "no user has stored any"
    key = tmp_path / "key"
    settings.secrets_key_file = key
    finding = findings_by_name(settings)["secrets"]
    assert (finding.state, f"TRAINYARD_SECRETS_KEY_FILE={key} does not exist" in finding.message) == ("error", True)
    assert finding.fix.startswith("name the file with the key; a first key is made with: python -c")
    key.write_text("A" * 43 + "=")
    key.chmod(0o640)
    assert findings_by_name(settings)["secrets"].fix == f"chmod 600 {key}"
    key.chmod(0o600)
    assert findings_by_name(settings)["secrets"].state == "ok"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def add_program(folder: Path, name: str, output: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{output}'\n")
    (folder / name).chmod(0o755)


class TestContainers:
    def test_installed_runtimes_are_named_without_a_setting(self, settings: Settings, programs: Path) -> None:
        add_program(programs, "podman")
        add_program(programs, "ch-run")
        add_program(programs, "srun", "no plug-in")
        finding = containers(settings)
        assert (finding.state, finding.message.partition("has ")[2]) == ("ok", "charliecloud, podman")

    def test_pyxis_is_an_option_of_srun(self, settings: Settings, programs: Path) -> None:
        add_program(programs, "srun", "--container-mounts=SRC:DST")
        assert "pyxis" in containers(settings).message

    @pytest.mark.parametrize(("backend", "state"), [("local", "error"), ("slurm", "warning")])
    def test_missing_runtime_is_reported(self, settings: Settings, programs: Path, backend: str, state: str) -> None:
        selected = settings.model_copy(update={"container_runtime": "apptainer", "backend": backend})
        finding = containers(selected)
        assert finding.state == state
        assert "apptainer" in finding.message

    def test_docker_on_slurm_is_a_warning(self, settings: Settings, programs: Path) -> None:
        add_program(programs, "docker")
        selected = settings.model_copy(update={"container_runtime": "docker", "backend": "slurm"})
        assert containers(selected).state == "warning"

    def test_pyxis_on_the_local_backend_is_an_error(self, settings: Settings) -> None:
        assert containers(settings.model_copy(update={"container_runtime": "pyxis"})).state == "error"
