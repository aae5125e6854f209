"""Settings of pip as variables of uv, which reads none of pip's files; virtual environments that cannot be used."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import wait_until
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


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a clone whose virtual environment is this test's Python and a program that starts it."""
    (tmp_path / "pyproject.toml").touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "pip").write_text(f"#!{programs}/python\n")
    monkeypatch.chdir(tmp_path)
    return programs


def made(commands: list[list[str]]) -> list[list[str]]:
    return [command[1:] for command in commands if "venv" in command or "ensurepip" in command]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands, of which only questions are carried out."""
    recorded: list[list[str]] = []
    carry_out = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        recorded.append(command)
        return carry_out(command, **options) if "-c" in command else subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return recorded


def test_own_environment_is_left_alone(own: Path, commands: list[list[str]]) -> None:
    dependencies._prepare()
    assert made(commands) == []


@pytest.mark.parametrize("fault", ["no python", "another folder", "another version"])
def test_environment_that_cannot_be_used_is_made_again(
    own: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    if fault == "another folder":
        (own / "pip").write_text("#!/other/.venv/bin/python\n")
    else:
        (own / "python").unlink()
        (own / "python").symlink_to("/nonexistent/python3")
    if fault == "another version":
        (own / "python").unlink()
        (own / "python").write_text("#!/bin/sh\necho 3.10\n")
        (own / "python").chmod(0o755)
    dependencies._prepare()
    assert made(commands) == [["-m", "venv", "--clear", ".venv"]]
    assert capsys.readouterr().out.startswith("Making .venv again: it")


def test_interrupted_environment_gets_pip(own: Path, commands: list[list[str]]) -> None:
    (own / "pip").unlink()
    (own / "python").unlink()
    (own / "python").write_text(f'#!/bin/sh\ncase "$2" in *pip) exit 1; esac\nexec {sys.executable} "$@"\n')
    (own / "python").chmod(0o755)
    dependencies._prepare()
    assert made(commands) == [["-m", "ensurepip"]]


def test_installations_into_one_clone_wait_for_each_other(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = []

    def second() -> None:
        with dependencies._one_at_a_time():
            order.append("second")

    with dependencies._one_at_a_time():
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: "Waiting for another" in capsys.readouterr().out, 30, "the second waits")
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_an_old_python_is_refused_with_the_remedy(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(
        dependencies.InstallationError, match=r"is Python 3\.10; name 3\.11 or newer: make PYTHON=python3\.11"
    ):
        dependencies.main("worker", "9 packages")
