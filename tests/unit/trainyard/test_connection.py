"""The URL and the token that a client uses."""

import os
import socket
import ssl
import subprocess
import sys
from unittest.mock import patch

import pytest

from trainyard.client import Client, TrainyardError
from trainyard.client import connection as connection_module
from trainyard.client.connection import connection
from trainyard.client.listeners import listener_uids
from trainyard.contract.local_paths import admin_token_file, default_state_dir, service_url_file


@pytest.fixture
def listeners(monkeypatch):
    """Set which accounts listen on every port."""
    uids = {os.getuid()}
    monkeypatch.setattr(connection_module, "listener_uids", lambda port: uids)
    return uids


@pytest.fixture
def admin_token(tmp_path, monkeypatch, listeners):
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    file = admin_token_file(tmp_path / "state")
    file.parent.mkdir()
    file.write_text("from-the-file\n")


class TestConnection:
    def test_default_is_the_local_service_without_a_token(self):
        default = connection()
        assert (default.url, default.token, default.local, default.headers) == ("http://127.0.0.1:8470", None, True, {})

    def test_environment_then_arguments(self, monkeypatch):
        monkeypatch.setenv("TRAINYARD_URL", "https://yard.example/")
        monkeypatch.setenv("TRAINYARD_TOKEN", "mine")
        assert (connection().url, connection().token) == ("https://yard.example", "mine")
        assert connection("http://localhost:1", "other").token == "other"

    def test_local_admin_token_file_is_read(self, admin_token):
        assert connection().token == "from-the-file"
        assert connection("http://[::1]:8470").token == "from-the-file"

    def test_admin_token_file_setting_is_respected(self, admin_token, tmp_path, monkeypatch):
        (tmp_path / "given").write_text("an-operators\n")
        monkeypatch.setenv("TRAINYARD_ADMIN_TOKEN_FILE", str(tmp_path / "given"))
        assert connection().token == "an-operators"
        assert connection("https://yard.example").token is None

    def test_url_of_the_local_service_gets_the_admin_token(self, admin_token, tmp_path, monkeypatch):
        service_url_file(tmp_path / "state").write_text("http://10.0.0.5:8470\n")
        assert (connection().url, connection().token, connection().local) == (
            "http://10.0.0.5:8470",
            "from-the-file",
            True,
        )
        assert connection("http://10.0.0.5:8470/").token == "from-the-file"
        assert connection("http://10.0.0.6:8470").token is None

    def test_admin_token_is_never_sent_to_another_host(self, admin_token):
        for url in ("https://yard.example", "http://127.evil.example", "http://localhost.evil.example"):
            assert connection(url).token is None, url

    @pytest.mark.parametrize("others", [{65534}, {65534, 0}, {65534, os.getuid()}])
    def test_admin_token_is_never_sent_to_another_account(self, admin_token, listeners, others, monkeypatch):
        listeners.clear()
        listeners.update(others)
        with pytest.raises(TrainyardError, match="a program of another account listens"):
            connection()
        assert connection(token="mine").token == "mine"
        assert connection("https://yard.example").token is None

    def test_admin_token_is_read_only_while_somebody_listens(self, admin_token, listeners):
        listeners.clear()
        assert connection().token is None
        listeners.add(0)
        assert connection().token == "from-the-file"

    def test_explicit_token_takes_precedence(self, admin_token, monkeypatch):
        monkeypatch.setenv("TRAINYARD_TOKEN", "mine")
        assert connection().token == "mine"

    @pytest.mark.parametrize("url", ["127.0.0.1:8470", "ftp://host", "http://", "http://host:port", "nonsense"])
    def test_invalid_url_is_an_error(self, url):
        with pytest.raises(TrainyardError, match="check TRAINYARD_URL"):
            connection(url)

    def test_token_with_a_line_break_is_an_error(self):
        with pytest.raises(TrainyardError, match="check TRAINYARD_TOKEN"):
            connection(token="two\nlines")


class TestListeners:
    def test_own_listening_socket_has_the_own_account(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert listener_uids(port) == {os.getuid()}
        assert listener_uids(port) == set()

    def test_only_listening_sockets_of_the_port_count(self, tmp_path):
        table = tmp_path / "tcp"
        row = "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1"
        rows = [(8470, "0A", 7), (8470, "01", 8), (8471, "0A", 9)]
        lines = ["  sl  local_address ...", *(row.format(port=port, state=state, uid=uid) for port, state, uid in rows)]
        table.write_text("\n".join(lines))
        assert listener_uids(8470, [table, tmp_path / "absent"]) == {7}
        assert listener_uids(8470, [tmp_path / "absent"]) is None


class TestPastedValues:
    def test_surrounding_blanks_are_stripped(self, monkeypatch):
        monkeypatch.setenv("TRAINYARD_URL", " https://yard.example/\n")
        monkeypatch.setenv("TRAINYARD_TOKEN", "mine \n")
        assert (connection().url, connection().token) == ("https://yard.example", "mine")

    def test_blank_values_count_as_unset(self, admin_token, monkeypatch):
        monkeypatch.setenv("TRAINYARD_TOKEN", " ")
        assert connection().token == "from-the-file"

    def test_blank_inside_a_token_is_rejected(self):
        with pytest.raises(TrainyardError, match="check TRAINYARD_TOKEN"):
            connection(token="two words")


class TestLocalPaths:
    def test_state_folder(self, monkeypatch, tmp_path):
        assert default_state_dir() == tmp_path / "home/.local/state/trainyard"
        monkeypatch.setenv("XDG_STATE_HOME", "relative")
        assert default_state_dir() == tmp_path / "home/.local/state/trainyard"
        monkeypatch.setenv("XDG_STATE_HOME", "/var/xdg")
        assert str(default_state_dir()) == "/var/xdg/trainyard"


class TestImports:
    @pytest.mark.parametrize(
        ("statement", "forbidden"),
        [
            ("import trainyard", {"torch", "fastapi", "httpx", "typer", "rich", "pydantic"}),
            ("import trainyard; trainyard.Client", {"torch", "fastapi", "typer", "service", "worker"}),
            ("import trainyard.cli", {"torch", "fastapi", "typer", "httpx"}),
            ("import trainyard.cli.app, trainyard.demo", {"torch", "fastapi", "service", "worker"}),
        ],
    )
    def test_heavy_modules_are_not_imported(self, statement, forbidden):
        program = f"import sys; {statement}; print(*({forbidden!r} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.split() == []


@pytest.mark.parametrize(("scheme", "times"), [("http", 0), ("https", 1)])
def test_authorities_are_read_only_for_tls(scheme, times, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with patch("ssl.create_default_context", wraps=ssl.create_default_context) as read:
        Client(f"{scheme}://yard.example", "token").close()
    assert read.call_count == times
