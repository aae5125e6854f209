"""What an error of the client says."""

import asyncio

import httpx
import pytest

from tests.unit.trainyard.fake_service import FakeService, error
from trainyard.client import Client, InvalidRequestError, NotFoundError, PermissionDeniedError, SettingError

SPEC = {"task": "script", "argv": ["train.py"]}
REASON = "your token does not permit running code; an administrator grants this with .*--may-run-code.*CODE_ROLES"


def test_an_invalid_request_names_all_of_its_fields() -> None:
    problems = [{"param": "gpus", "message": "is required"}, {"param": "steps", "message": "is too small"}]
    refused = error(422, "is required", param="gpus", problems=problems)
    with pytest.raises(InvalidRequestError) as found:
        FakeService().on("POST", "/v1/jobs", refused).client().submit({})
    assert str(found.value) == "gpus: is required; steps: is too small"
    assert found.value.message == "is required"


def test_and_its_one_field_where_the_service_lists_no_problems() -> None:
    with pytest.raises(InvalidRequestError, match=r"^limit: is too large$"):
        list(FakeService().on("GET", "/v1/jobs", error(422, "is too large", param="limit")).client().jobs())


class TestCodeThatTheTokenMayNotRun:
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

    def test_is_said_plainly(self, refusing, folder):
        with pytest.raises(PermissionDeniedError, match=REASON):
            refusing.client().submit(SPEC, code=folder)
        with pytest.raises(PermissionDeniedError, match=REASON):
            asyncio.run(refusing.async_client().submit(SPEC, code=folder))
        assert refusing.requests == []

    def test_on_the_command_line_too(self, refusing, run, folder):
        (folder / "spec.yaml").write_text("task: script\nargv: [train.py]\n")
        done = run("submit", "spec.yaml")
        assert (done.exit_code, done.stdout) == (5, "")
        assert done.stderr.startswith("error: your token does not permit running code; an administrator grants this")


def test_an_id_of_no_possible_shape_is_not_there_and_not_asked_for() -> None:
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
def test_a_url_that_is_none_is_wrong_usage(url):
    with pytest.raises(SettingError, match="check TRAINYARD_URL"):
        Client(url)


def test_and_so_on_the_command_line(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from trainyard.cli.app import app

    monkeypatch.setenv("TRAINYARD_URL", "foo")
    done = CliRunner().invoke(app, ["list"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "check TRAINYARD_URL" in done.stderr
