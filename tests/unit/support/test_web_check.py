import json
import shutil
from pathlib import Path

import pytest

from tests.support import web_check
from tests.support.web_check import InstallationError, install, node_and_npm

LOCK = json.loads((web_check.SOURCE / "package-lock.json").read_text())


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "web"
    monkeypatch.setattr(web_check, "BUILD", folder)
    monkeypatch.setattr(web_check, "_INSTALLED", folder / "node_modules" / ".package-lock.json")
    return folder


def npm(tmp_path: Path, script: str) -> list[str]:
    path = tmp_path / "npm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [str(path)]


def test_the_lock_pins_versions_and_names_no_registry() -> None:
    pinned = {name: value for name, value in LOCK["packages"].items() if name}
    assert {"node_modules/typescript", "node_modules/@biomejs/biome"} <= pinned.keys()
    assert all("integrity" in value and "resolved" not in value for value in pinned.values())


def test_programs_are_installed_once_for_a_lock(build: Path, tmp_path: Path) -> None:
    command = npm(tmp_path, f"mkdir node_modules; touch node_modules/.package-lock.json; echo $* >> {tmp_path}/calls")
    install(command)
    install(command)
    assert (tmp_path / "calls").read_text().count("ci ") == 1
    (build / "package-lock.json").write_text("{}")
    install(command)
    assert (tmp_path / "calls").read_text().count("ci ") == 2


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("script", ["exit 1", "exit 0"])
def test_a_failed_installation_is_an_error(tmp_path: Path, script: str) -> None:
    with pytest.raises(InstallationError, match=r"scripts are not checked: `npm ci` in .+ failed"):
        install(npm(tmp_path, script))


def test_npm_on_the_path_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert node_and_npm() == (["/usr/bin/node"], ["/usr/bin/npm"])


def test_without_node_the_message_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(web_check, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match="run `make dev`, or put node and npm on the PATH"):
        node_and_npm()
