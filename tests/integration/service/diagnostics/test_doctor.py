"""The service's side of `trainyard doctor`, on real folders and a real database."""

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError

import pytest

from service.core.settings import Settings
from service.db.migrate import upgrade
from service.diagnostics.checks import examine
from service.diagnostics.slurm_checks import controller_finding
from tests.support.world import World
from trainyard.contract.wire.diagnostics import Finding


@pytest.fixture
def settings(migrated_sqlite: Path, tmp_path: Path) -> Settings:
    made = Settings(state_dir=tmp_path / "state", accelerator="cpu", low_disk_gb=0, port=1)
    made.runs.mkdir(parents=True)
    shutil.copy(migrated_sqlite, made.state / "trainyard.sqlite")
    (made.state / "admin_token").touch(mode=0o600)
    return made


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(settings)}


def wrong(settings: Settings) -> set[str]:
    return {name for name, finding in found(settings).items() if finding.state == "error"}


def test_what_is_in_order_is_told_so_and_a_silent_service_is_not(settings: Settings) -> None:
    assert wrong(settings) == {"route"}
    assert all(finding.fix for finding in found(settings).values() if finding.state != "ok")


def test_a_token_that_others_can_read_is_found(settings: Settings) -> None:
    token = settings.state / "admin_token"
    token.chmod(0o644)
    assert found(settings)["tokens"].fix == f"chmod 600 {token}"


def test_a_database_of_an_older_release_is_found(settings: Settings) -> None:
    (settings.state / "trainyard.sqlite").unlink()
    upgrade(settings.url, "0003")
    told = found(settings)["migrations"]
    assert (told.state, told.fix) == ("error", "run: python -m service migrate")
    assert "0003" in told.message


def test_a_database_that_is_not_there_is_found_and_not_made(settings: Settings) -> None:
    database = settings.state / "trainyard.sqlite"
    database.unlink()
    assert {"database", "migrations"} <= wrong(settings)
    assert not database.exists()


def test_runs_that_are_not_there_are_found(settings: Settings) -> None:
    settings.runs.rmdir()
    assert {"runs", "disk"} <= wrong(settings)


def test_little_space_is_found(settings: Settings) -> None:
    assert "disk" in wrong(settings.model_copy(update={"low_disk_gb": 1e9}))


def test_gpus_that_are_asked_for_and_not_here_are_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gpu = found(settings.model_copy(update={"accelerator": "cuda"}))["gpu"]
    assert gpu.state == "error"
    assert "TRAINYARD_ACCELERATOR" in gpu.message
    assert found(settings)["gpu"].state == "ok"


def test_on_slurm_a_missing_command_and_an_address_of_this_machine_are_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    told = found(settings.model_copy(update={"backend": "slurm"}))
    assert told["slurm"].state == "error"
    assert told["route"].fix == "set TRAINYARD_PUBLIC_URL"


def test_an_interpreter_that_is_not_on_the_shared_filesystem_is_found(settings: Settings) -> None:
    python = settings.runs.parent / "venv" / "bin" / "python"
    slurm = settings.model_copy(update={"backend": "slurm", "slurm_python": python})
    assert found(slurm)["python"].state == "error"
    assert found(slurm.model_copy(update={"slurm_python": Path("/opt/nowhere/python")}))["python"].state == "warning"
    python.parent.mkdir(parents=True)
    python.symlink_to("/of/the/nodes/python3")
    assert found(slurm)["python"].state == "ok"
    assert f"srun -N1 {python}" in found(slurm)["python"].message


def test_munge_is_told_from_a_controller_that_is_down() -> None:
    unknown = controller_finding(1, "sinfo: error: x\nslurm_load_partitions: Protocol authentication error\n")
    assert (unknown.name, unknown.state) == ("munge", "error")
    away = controller_finding(1, "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    assert (away.name, away.state) == ("slurmctld", "error")


def test_a_distrusted_certificate_has_a_fix_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def distrust(*_args: object, **_options: object) -> None:
        raise URLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    monkeypatch.setattr("service.diagnostics.checks.urlopen", distrust)
    assert "authority" in (found(settings)["route"].fix or "")


def test_the_command_says_one_object_a_line_and_ends_with_1(settings: Settings) -> None:
    environment = os.environ | {"TRAINYARD_STATE_DIR": str(settings.state), "TRAINYARD_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "service", "doctor"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert {json.loads(line)["name"] for line in done.stdout.splitlines()} >= {"database", "runs", "route"}


def test_the_service_says_it_of_itself_to_administrators_alone(world: World) -> None:
    answer = world.client.get("/v1/doctor")
    assert answer.status_code == 200
    assert {"database", "runs", "route"} <= {finding["name"] for finding in answer.json()["findings"]}
    assert world.new_user("user", "anna").get("/v1/doctor").status_code == 403


def test_in_a_request_slurm_is_not_asked(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} $* >> {asked}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    slurm = settings.model_copy(update={"backend": "slurm"})
    list(examine(slurm, ask_scheduler=False))
    assert asked.read_text() == "sbatch --version\n"
    assert "slurmctld" in {finding.name for finding in examine(slurm)}
