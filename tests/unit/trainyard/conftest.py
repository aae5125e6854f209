"""No test here reads a person's settings, sleeps, or opens a socket."""

import os

import pytest

from tests.unit.trainyard.fake_service import FakeService


@pytest.fixture(autouse=True)
def _nobody(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("TRAINYARD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def service():
    return FakeService()
