"""Installation of PostgreSQL for the tests."""

import os
from pathlib import Path

import pytest

from tests.support import postgres


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only `tmp_path` is on PATH, and nothing is installed; returns it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "INSTALLED", tmp_path / "lib")
    return tmp_path


def program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_newest_version_is_selected(bare_machine: Path) -> None:
    for version in ("9.6", "15", "17"):
        for name in ("initdb", "pg_ctl"):
            program(bare_machine / "lib" / version / "bin" / name)
    assert postgres._programs() == bare_machine / "lib" / "17" / "bin"


def test_package_is_installed_as_root(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = bare_machine / "lib" / "15" / "bin"
    program(bare_machine / "apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {bare_machine}/calls')
    with pytest.raises(postgres.PostgresMissingError, match="install the package `postgresql`"):
        postgres._programs()
    assert (bare_machine / "calls").read_text().splitlines() == [
        "noninteractive -o DPkg::Lock::Timeout=300 update -qq",
        "noninteractive -o DPkg::Lock::Timeout=300 install -qq --no-install-recommends postgresql",
    ]
    program(made / "initdb")
    program(made / "pg_ctl")
    assert postgres._programs() == made


def test_the_error_explains_the_installation(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(bare_machine / "apt-get", f"touch {bare_machine}/calls")
    with pytest.raises(postgres.PostgresMissingError, match="install the package `postgresql`"):
        postgres._programs()
    assert not (bare_machine / "calls").exists()
