"""Messages of client errors."""

import asyncio

import httpx
import pytest

from tests.unit.trainyard.fake_service import FakeService, error
from trainyard.client import Client, InvalidRequestError, NotFoundError, PermissionDeniedError, SettingError

SPEC = {"task": "script", "argv": ["train.py"]}
REASON = "your token does not permit running code; an administrator grants this with .*--may-run-code.*CODE_ROLES"


def test_invalid_request_error_names_all_fields() -> None:
    problems = [{"param": "gpus", "message": "is required"}, {"param": "steps", "message": "is too small"}]
    refused = error(422, "is required", param="gpus", problems=problems)
    with pytest.raises(InvalidRequestError) as caught:
        FakeService().on("POST", "/v1/jobs", refused).client().submit({})
    assert str(caught.value) == "gpus: is required; steps: is too small"
    assert caught.value.message == "is required"


def test_invalid_request_error_without_problems_names_its_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"^limit: is too large$"):
        list(FakeService().on("GET", "/v1/jobs", error(422, "is too large", param="limit")).client().jobs())


class TestCodeRoleRequired:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "train.py").write_text("")
        return tmp_path

    @pytest.fixture
    def refusing(self, service, monkeypatch):
        """Every answer to HEAD comes without its body."""
        answer = service._answer
        monkeypatch.setattr(service, "_answer", lambda r: httpx.Response(403) if r.method == "HEAD" else answer(r))
        return service

    def test_client_raises_permission_denied(self, refusing, folder):
        with pytest.raises(PermissionDeniedError, match=REASON):
            refusing.client().submit(SPEC, code=folder)
        with pytest.raises(PermissionDeniedError, match=REASON):
            asyncio.run(refusing.async_client().submit(SPEC, code=folder))
        assert refusing.requests == []

    def test_cli_prints_permission_denied(self, refusing, run, folder):
        (folder / "spec.yaml").write_text("task: script\nargv: [train.py]\n")
        done = run("submit", "spec.yaml")
        assert (done.exit_code, done.stdout) == (5, "")
        assert done.stderr.startswith("error: your token does not permit running code; an administrator grants this")


def test_malformed_id_is_not_found_without_a_request() -> None:
    service = FakeService()
    with service.client() as client:
        for call, kind in (
            (client.sweep, "sweep"),
            (client.cancel_sweep, "sweep"),
            (client.revoke_token, "token"),
            (client.test_webhook, "webhook"),
        ):
            with pytest.raises(NotFoundError, match=f"there is no {kind} 'nope'"):
                call("nope")
    assert service.requests == []


@pytest.mark.parametrize("url", ["foo", "ftp://x", "http://x:y"])
def test_invalid_url_is_a_usage_error(url):
    with pytest.raises(SettingError, match="check TRAINYARD_URL"):
        Client(url)


def test_malformed_id_on_the_command_line(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from trainyard.cli.app import app

    monkeypatch.setenv("TRAINYARD_URL", "foo")
    done = CliRunner().invoke(app, ["list"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "check TRAINYARD_URL" in done.stderr
