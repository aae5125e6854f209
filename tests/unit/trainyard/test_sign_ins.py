"""The file of `trainyard login`, and which program its tokens are sent to."""

import os
import socket
import stat
from datetime import UTC, datetime, timedelta

import pytest

from trainyard.client import SettingError
from trainyard.client import sign_ins as sign_ins_module
from trainyard.client.connection import connection
from trainyard.client.sign_ins import load_sign_ins, sign_ins_file

YARD = "https://yard.example"
LOCAL = "http://127.0.0.1:8470"
SOON = datetime.now(UTC) + timedelta(days=30)


@pytest.fixture
def listeners(monkeypatch):
    """Set which accounts listen on every port."""
    uids = {900}
    monkeypatch.setattr(sign_ins_module, "listener_uids", lambda port: uids)
    return uids


def sign_in(url, token="ty_mine", expires_at=SOON):
    load_sign_ins().with_sign_in(url, token=token, name="ada", expires_at=expires_at).save()


class TestFile:
    def test_file_is_closed_to_others(self):
        old = os.umask(0)
        try:
            sign_in(YARD)
        finally:
            os.umask(old)
        assert stat.S_IMODE(sign_ins_file().stat().st_mode) == 0o600

    def test_file_is_in_the_configuration_folder(self, monkeypatch, tmp_path):
        assert sign_ins_file() == tmp_path / "home" / ".config" / "trainyard" / "sign_ins.json"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
        assert sign_ins_file() == tmp_path / "xdg" / "trainyard" / "sign_ins.json"
        monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
        assert sign_ins_file() == tmp_path / "home" / ".config" / "trainyard" / "sign_ins.json"

    def test_open_file_is_refused(self):
        sign_in(YARD)
        sign_ins_file().chmod(0o640)
        with pytest.raises(SettingError, match="chmod 600"):
            connection(YARD)
        assert connection(YARD, "given").token == "given"

    def test_file_of_another_account_is_ignored(self, monkeypatch):
        sign_in(YARD)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert connection(YARD).token is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"services": {"x": {}}, "last": null}', "\0", '{"services": 1}'])
    def test_damaged_file_is_an_error_with_the_remedy(self, text):
        sign_in(YARD)
        sign_ins_file().write_text(text)
        with pytest.raises(SettingError, match="trainyard login"):
            load_sign_ins()


class TestTokens:
    def test_token_is_used_for_its_service_alone(self):
        sign_in(YARD)
        assert connection(YARD + "/").token == "ty_mine"
        assert connection("https://YARD.example:443").token == "ty_mine"
        for other in ("http://yard.example", "https://yard.example:8443", "https://yard.example.evil", LOCAL):
            assert connection(other).token is None, other

    def test_last_service_is_the_default(self, monkeypatch):
        sign_in("https://other.example", "ty_other")
        sign_in(YARD)
        assert (connection().url, connection().token) == (YARD, "ty_mine")
        load_sign_ins().without(YARD).save()
        assert (connection().url, connection().token) == (LOCAL, None)
        assert connection("https://other.example").token == "ty_other"

    def test_variables_have_precedence(self, monkeypatch):
        sign_in(YARD)
        monkeypatch.setenv("TRAINYARD_TOKEN", "variable")
        assert connection().token == "variable"
        monkeypatch.setenv("TRAINYARD_URL", "https://other.example")
        assert connection().url == "https://other.example"

    def test_expired_token_is_not_sent(self):
        sign_in(YARD, expires_at=datetime.now(UTC) - timedelta(seconds=1))
        assert connection(YARD).token is None


class TestLoopback:
    def test_token_is_sent_to_the_same_account(self, listeners):
        sign_in(LOCAL)
        assert connection("http://localhost:8470").token == "ty_mine"
        listeners.add(0)
        assert connection(LOCAL).token == "ty_mine"

    @pytest.mark.parametrize("others", [{901}, {900, 901}, set()])
    def test_token_is_not_sent_to_another_account(self, listeners, others):
        sign_in(LOCAL)
        listeners.clear()
        listeners.update(others)
        assert connection(LOCAL).token is None

    def test_token_is_not_sent_on_another_machine(self, listeners, monkeypatch):
        sign_in(LOCAL)
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert connection(LOCAL).token is None
        assert load_sign_ins().last_url is None
