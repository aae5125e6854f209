"""`trainyard open`: a link that signs a browser in."""

import json
import re
import stat

import pytest

from tests.unit.trainyard.fake_service import TIME, job
from trainyard.cli import open_page
from trainyard.client.sign_ins import sign_ins_file

CODE = "c" * 43
LINK = f"/sign-in#code={CODE}&next=/jobs"


@pytest.fixture
def yard(service, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service.on("POST", "/v1/sign-in/codes", {"code": CODE, "expires_at": TIME})
    return service.on("GET", "/v1/jobs/a1", job("a1"))


@pytest.fixture
def opened(monkeypatch):
    """Let there be a display; return the addresses that the browser was started with."""
    addresses = []
    monkeypatch.setattr(open_page, "_has_display", lambda: True)
    monkeypatch.setattr(open_page.webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def test_link_of_a_job_is_printed(yard, run):
    done = run("open", "a1", "--print")
    assert done.stdout.strip().endswith(f"{LINK}/a1")
    assert "give it to nobody" in done.stderr
    assert yard.requests[-1].url.path == "/v1/sign-in/codes"


def test_browser_gets_the_code_from_a_private_file_alone(yard, run, opened):
    done = run("open")
    assert done.exit_code == 0, done.stderr
    page = sign_ins_file().with_name("open.html")
    assert opened == [page.as_uri()]
    assert CODE not in done.stdout + done.stderr
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert re.search(rf'content="0; url=[^"]*/sign-in#code={CODE}&amp;next=/jobs"', page.read_text())


def test_without_a_display_the_link_is_printed(yard, run, monkeypatch):
    monkeypatch.setattr(open_page.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    done = run("open")
    assert done.stdout.strip().endswith(LINK)
    assert "no browser" in done.stderr
    assert not sign_ins_file().with_name("open.html").exists()


def test_link_is_printed_if_the_file_cannot_be_written(yard, run, opened):
    sign_ins_file().parent.parent.mkdir(parents=True, exist_ok=True)
    sign_ins_file().parent.write_text("a file where the folder belongs")
    done = run("open")
    assert (done.exit_code, opened) == (0, [])
    assert done.stdout.strip().endswith(LINK)
    assert "open.html" in done.stderr


def test_link_as_json(yard, run):
    shown = json.loads(run("open", "--json").stdout)
    assert (shown["object"], shown["url"].endswith(LINK)) == ("sign_in_link", True)
