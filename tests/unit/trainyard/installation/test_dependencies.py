"""Settings of pip as variables of uv, which reads none of pip's files."""

import os
import sys
from pathlib import Path

import pytest

from trainyard.installation import dependencies
from trainyard.installation.dependencies import parse_settings, uv_variables


def test_the_environment_wins_over_files_and_a_command_over_all_commands() -> None:
    text = (
        ":env:.find-links='/wheels /more wheels'\n"
        "download.index-url='https://other.example'\n"
        "global.find-links='/other'\n"
        "global.index-url='https://global.example'\n"
        "install.index-url='https://install.example'\n"
    )
    assert parse_settings(text) == {"find-links": "/wheels /more wheels", "index-url": "https://install.example"}


def test_uv_searches_where_pip_does() -> None:
    assert uv_variables({"find-links": "/wheels\nhttps://files.example", "timeout": "9"}) == {
        "UV_FIND_LINKS": "/wheels,https://files.example"
    }
    several = {"index-url": "https://one.example", "extra-index-url": "https://two.example\nhttps://three.example"}
    assert uv_variables(several) == {
        "UV_DEFAULT_INDEX": "https://one.example",
        "UV_INDEX": "https://two.example https://three.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the settings of pip be those of one file."""
    (tmp_path / "pip.conf").write_text("[global]\nfind-links =\n    /wheels\n    /more\n")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setattr(dependencies, "_PYTHON", sys.executable)


@pytest.mark.usefixtures("settings_file")
def test_pip_lists_its_settings_in_this_form() -> None:
    assert dependencies.pip_settings()["find-links"].split() == ["/wheels", "/more"]


@pytest.mark.usefixtures("settings_file")
@pytest.mark.parametrize("own", [None, "/mine"])
def test_uv_installs_from_the_folders_of_pip_unless_it_has_its_own(tmp_path, monkeypatch, capfd, own) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$UV_FIND_LINKS: $*"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if own:
        monkeypatch.setenv("UV_FIND_LINKS", own)
    dependencies.main("worker", "9 packages")
    first, called, last = capfd.readouterr().out.splitlines()
    assert first.startswith("Installing trainyard[worker] into .venv with uv: 9 packages.")
    options = "--quiet --constraint constraints.txt --editable .[worker]"
    assert called == f"{own or '/wheels,/more'}: pip install --python {sys.executable} {options}"
    assert last.startswith("Installed in ")
