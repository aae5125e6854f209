"""The checks of `doctor` that need no service."""

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from service.diagnostics.checks import filesystem_of
from tests.unit.trainyard.fake_service import error
from trainyard.cli.doctor import clock_finding
from trainyard.contract.http import API_HEADER, API_VERSION

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("date", "state"),
    [
        ("Thu, 01 Jan 2026 12:00:01 GMT", "ok"),
        ("Thu, 01 Jan 2026 12:01:00 GMT", "warning"),
        ("yesterday", "warning"),
        (None, "warning"),
    ],
)
def test_clock_difference_is_reported(date, state):
    finding = clock_finding(date, NOW)
    assert finding.state == state
    assert (finding.fix is None) == (state == "ok")


def test_unreachable_service_is_an_error_with_a_fix(run, monkeypatch):
    def refuse(*_args, **_options):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx.Client, "get", refuse)
    result = run("doctor")
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("ERROR"))
    assert "trainyard serve" in line


def ready(monkeypatch):
    health = {"status": "ok", "checks": {}}
    answer = httpx.Response(200, json=health, headers={API_HEADER: API_VERSION})
    monkeypatch.setattr(httpx.Client, "get", lambda *_, **__: answer)


def test_running_service_is_checked_instead_of_shell_settings(service, run, monkeypatch):
    ready(monkeypatch)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", "/nowhere")
    there = {"name": "disk", "state": "error", "message": "full there", "fix": "delete jobs"}
    service.on("GET", "/v1/doctor", {"object": "diagnostics", "findings": [there]})
    result = run("doctor")
    assert result.exit_code == 1
    assert "ERROR    disk        full there. Fix: delete jobs" in result.stdout.splitlines()
    assert "migrations" not in result.stdout


def test_unavailable_diagnostics_are_a_warning_with_a_fix(run, monkeypatch):
    ready(monkeypatch)
    result = run("doctor")
    line = next(line for line in result.stdout.splitlines() if " diagnostics " in line)
    assert "administrator's token" in line


def test_local_settings_are_not_checked_for_a_remote_service(run, monkeypatch):
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:9")
    result = run("doctor")
    assert not any("migrations" in line for line in result.stdout.splitlines())
    assert any("unset TRAINYARD_URL" in line for line in result.stdout.splitlines())


@pytest.mark.parametrize("status", [200, 404])
def test_another_program_at_the_address_is_an_error(run, monkeypatch, status):
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:9")
    page = httpx.Response(status, text="<html>welcome</html>", request=httpx.Request("GET", "http://127.0.0.1:9"))
    monkeypatch.setattr(httpx.Client, "get", lambda *_, **__: page)
    wrong = [line for line in run("doctor").stdout.splitlines() if line.startswith("ERROR")]
    assert len(wrong) == 1
    assert "something other than Trainyard" in wrong[0]
    assert "Fix: set TRAINYARD_URL" in wrong[0]


def test_invalid_token_is_reported_once(service, run, monkeypatch):
    ready(monkeypatch)
    refusal = error(401, "a valid token is needed", "authentication_error", "invalid_token")
    for path in ("/v1/tokens/self", "/v1/cluster", "/v1/doctor"):
        service.on("GET", path, refusal)
    lines = [line for line in run("doctor").stdout.splitlines() if "a valid token is needed" in line]
    assert [line.split()[1] for line in lines] == ["token"]


@pytest.mark.parametrize(
    ("local", "exists", "advice"),
    [
        (False, True, "that an administrator made with"),
        (True, False, "admin_token does not exist"),
        (True, True, "admin_token was not accepted"),
    ],
)
def test_advice_for_a_missing_token_needs_none(service, run, monkeypatch, tmp_path, local, exists, advice):
    ready(monkeypatch)
    service.on("GET", "/v1/tokens/self", error(401, "a valid token is needed", "authentication_error", "invalid_token"))
    client = service.client()
    client.local = local
    monkeypatch.setattr(service, "client", lambda *_: client)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    if exists:
        (tmp_path / "admin_token").touch()
    line = next(line for line in run("doctor").stdout.splitlines() if line.startswith("ERROR    token"))
    assert advice in line
    assert ("set TRAINYARD_STATE_DIR to the state folder of the service" in line) is local


def test_filesystem_is_that_of_the_innermost_mount():
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/shared /shared nfs4 rw 0 0\ntmpfs /shared/fast tmpfs rw 0 0\n"
    assert filesystem_of(Path("/shared/runs"), mounts) == "nfs4"
    assert filesystem_of(Path("/shared/fast/x"), mounts) == "tmpfs"
    assert filesystem_of(Path("/sharedish"), mounts) == "ext4"


@pytest.mark.cpu_seconds(5)
def test_local_slurm_is_checked_in_addition_to_the_service(service, run, monkeypatch, tmp_path):
    ready(monkeypatch)
    monkeypatch.setenv("TRAINYARD_BACKEND", "slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    service.on("GET", "/v1/doctor", {"object": "diagnostics", "findings": []})
    client = service.client()
    client.local = True
    monkeypatch.setattr(service, "client", lambda *_: client)
    result = run("doctor")
    assert result.exit_code == 1
    assert any(line.startswith("ERROR    slurmctld") for line in result.stdout.splitlines())
