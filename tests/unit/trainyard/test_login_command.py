"""`trainyard login` and `trainyard logout`."""

import json
import socket
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.unit.trainyard.fake_service import TIME, error
from trainyard.client.sign_ins import load_sign_ins
from trainyard.contract.wire.sign_in import sign_in_message

URL = "http://trainyard.test"
NONCE = {"nonce": "n" * 43, "expires_at": TIME}
EXPIRY = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
TOKEN = {
    "id": "abc123abc123",
    "name": "ada",
    "role": "user",
    "created_at": TIME,
    "expires_at": EXPIRY.isoformat(),
    "unix_uid": 4711,
    "token": "ty_secret",
}


@pytest.fixture
def munge(monkeypatch, tmp_path):
    """Put a program `munge` on the path; return the file that gets its input."""
    program = tmp_path / "bin" / "munge"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/options\n/bin/cat >{tmp_path}/message\necho MUNGE:AAAA:\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("TRAINYARD_URL", URL)
    return tmp_path / "message"


@pytest.fixture
def yard(service):
    service.on("POST", "/v1/sign-in/nonces", NONCE)
    service.on("POST", "/v1/sign-in/munge", TOKEN)
    return service


@pytest.fixture
def run_at(service, run, monkeypatch):
    """Run a command with a client that accepts the URL and the token of the command."""
    monkeypatch.setattr(service, "client", lambda url=None, token=None, make=service.client: make(token))
    from typer.testing import CliRunner

    from trainyard.cli.app import app

    return lambda *arguments, stdin="": CliRunner().invoke(app, list(arguments), input=stdin, obj=service.client)


def test_login_stores_the_token_without_printing_it(yard, run_at, munge):
    done = run_at("login")
    assert (done.exit_code, done.stdout) == (0, f"signed in to {URL} as ada (user), until {EXPIRY:%Y-%m-%d %H:%M}Z\n")
    assert munge.read_bytes() == sign_in_message(URL, socket.gethostname(), "n" * 43)
    assert "--ttl=60" in (munge.parent / "options").read_text()
    assert json.loads(yard.requests[-1].content) == {"nonce": "n" * 43, "credential": "MUNGE:AAAA:"}
    assert load_sign_ins().token(URL) == "ty_secret"


def test_login_sends_no_other_token(yard, run_at, munge, monkeypatch):
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_of_another_service")
    assert run_at("login").exit_code == 0
    assert [request.headers["Authorization"] for request in yard.requests] == ["", ""]


def test_login_as_json_has_no_secret(yard, run_at, munge):
    shown = json.loads(run_at("login", "--json").stdout)
    assert (shown["name"], shown["unix_uid"], shown["url"]) == ("ada", 4711, URL)
    assert "ty_secret" not in json.dumps(shown)


def test_login_mentions_a_token_that_has_precedence(yard, run_at, munge, monkeypatch):
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_other")
    assert "TRAINYARD_TOKEN is set" in run_at("login").stderr


def test_login_without_munge_names_the_remedy(yard, run_at, munge, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_at("login")
    assert done.exit_code != 0
    assert "sign in on a machine of the cluster, or set TRAINYARD_TOKEN" in done.stderr


def test_login_reports_why_munge_failed(yard, run_at, munge):
    (munge.parent / "bin" / "munge").write_text("#!/bin/sh\necho 'munge: Error: no munged' >&2; exit 6\n")
    assert "munge: Error: no munged" in run_at("login").stderr


def test_refused_login_changes_no_sign_in(yard, run_at, munge):
    run_at("login")
    yard.answers["POST", "/v1/sign-in/munge"].clear()
    message = "only members of the Unix group `ml` can sign in"
    yard.on("POST", "/v1/sign-in/munge", error(403, message, "permission_error", "group_required"))
    done = run_at("login")
    assert (done.exit_code, done.stderr) == (5, f"error: {message}\n")
    assert load_sign_ins().token(URL) == "ty_secret"


def test_sign_in_is_not_repeated_after_an_unknown_outcome(yard, run_at, munge):
    yard.answers["POST", "/v1/sign-in/munge"].clear()
    yard.on("POST", "/v1/sign-in/munge", httpx.ReadError("cut"))
    assert run_at("login").exit_code == 4
    assert [request.url.path for request in yard.requests].count("/v1/sign-in/munge") == 1


def test_logout_revokes_and_removes_the_token(yard, run_at, munge):
    run_at("login")
    yard.on("DELETE", "/v1/tokens/self", httpx.Response(204))
    done = run_at("logout")
    assert (done.exit_code, done.stdout) == (0, f"signed out of {URL} as ada\n")
    assert yard.requests[-1].headers["Authorization"] == "Bearer ty_secret"
    assert load_sign_ins().services == {}


def test_logout_removes_a_token_that_is_not_valid(yard, run_at, munge):
    run_at("login")
    yard.on("DELETE", "/v1/tokens/self", error(401, "expired", "authentication_error", "invalid_token"))
    assert run_at("logout", "--json").exit_code == 0
    assert load_sign_ins().services == {}


def test_logout_without_the_service_removes_the_token(yard, run_at, munge):
    run_at("login")
    yard.on("DELETE", "/v1/tokens/self", httpx.ConnectError("refused"))
    done = run_at("logout")
    assert "stays valid until" in done.stderr
    assert load_sign_ins().services == {}


def test_logout_without_a_sign_in_is_a_usage_error(run_at, munge):
    assert "no sign-in at" in run_at("logout").stderr


def test_tokens_link_names_the_uid(service, run):
    service.on("PUT", "/v1/unix-users/ada", {"name": "ada", "uid": 4711, "created_at": TIME})
    assert run("tokens", "link", "ada").stdout == "the user ada is the Unix account ada (uid 4711)\n"


def test_login_by_browser_exchanges_the_code(service, run_at, monkeypatch):
    monkeypatch.setenv("TRAINYARD_URL", URL)
    service.on("POST", "/v1/sign-in/tokens", {**TOKEN, "unix_uid": None})
    done = run_at("login", "--browser", stdin="the-code-of-the-browser\n")
    assert done.exit_code == 0, done.output
    assert f"open {URL}/sign-in/oidc/code in a browser" in done.stderr
    assert f"signed in to {URL} as ada (user)" in done.stdout
    request = service.requests[-1]
    assert json.loads(request.content) == {"code": "the-code-of-the-browser"}
    assert "authorization" not in request.headers or request.headers["authorization"] == ""
    assert load_sign_ins().at(URL).token == "ty_secret"


def test_login_by_browser_needs_a_code(service, run_at, monkeypatch):
    monkeypatch.setenv("TRAINYARD_URL", URL)
    done = run_at("login", "--browser", stdin="\n")
    assert (done.exit_code, "enter the code" in done.output) == (2, True)
