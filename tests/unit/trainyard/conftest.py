"""Fixtures of client and CLI tests, which do not read user settings, sleep or open sockets."""

import os

import pytest
from typer.testing import CliRunner

from tests.unit.trainyard.fake_service import FakeService
from trainyard.cli import output
from trainyard.cli.app import app


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("TRAINYARD_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def terminal(monkeypatch):
    """Let the output be a terminal of 80 columns."""
    monkeypatch.setattr(output, "is_terminal", lambda *, stderr=False: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def run(service, monkeypatch, tmp_path):
    """Run a command against the fake service, in an empty folder; its result with exit_code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.sleep", service.slept.append)

    def invoke(*arguments, **options):
        return CliRunner().invoke(app, list(arguments), obj=service.client, **options)

    return invoke
