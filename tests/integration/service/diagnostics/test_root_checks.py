"""`trainyard doctor` and the start warn of roots that hold more than models and data."""

from pathlib import Path
from pwd import struct_passwd

import pytest
from structlog.testing import capture_logs

from service import main
from service.core.settings import Settings
from service.diagnostics import root_checks
from service.diagnostics.checks import run_checks
from service.diagnostics.root_checks import roots


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the home of a person and the home of a daemon."""
    entries = [("ada", 1000, "people/ada"), ("daemon", 2, "models")]
    accounts = [struct_passwd((name, "x", uid, uid, "", str(tmp_path / home), "")) for name, uid, home in entries]
    monkeypatch.setattr(root_checks.pwd, "getpwall", lambda: accounts)
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    for name in ("models/llama", "people/ada", "keys/a/b", "state", "own"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def settings_of(folder: Path, *names: str) -> Settings:
    named = ",".join(str(folder / name) for name in names)
    return Settings(state_dir=folder / "state", accelerator="cpu", allowed_roots=named)


def test_folder_of_models_is_fine(folder: Path) -> None:
    finding = roots(settings_of(folder, "models", "absent"))
    assert finding.state == "ok"
    assert finding.message.endswith(f"{folder / 'models'}, {folder / 'absent'}, {folder / 'state' / 'runs'}")


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("people", "the home {}/people/ada"),
        ("people/ada", "the home {}/people/ada"),
        ("own", "the home {}/own"),
        ("state", "the state folder of the service"),
        ("keys", "the credentials {}/keys/a/.ssh"),
        ("keys/a", "the credentials {}/keys/a/.ssh"),
    ],
)
def test_root_with_more_is_a_warning(folder: Path, name: str, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "keys" / "a" / ".ssh").mkdir()
    settings = settings_of(folder, "models", name)
    finding = roots(settings)
    problem = f"{folder / name} in TRAINYARD_ALLOWED_ROOTS holds {held.format(folder)}"
    assert (finding.state, finding.message) == ("warning", problem)
    assert "roots" in {each.name for each in run_checks(settings)}
    monkeypatch.setattr(main, "Settings", lambda: settings)
    monkeypatch.setattr(main, "serve", lambda settings: 0)
    monkeypatch.setattr(main, "configure_logging", lambda _format: None)
    with capture_logs() as logs:
        assert main.main(["serve"]) == 0
    assert [one["event"] for one in logs if problem in one["event"]]


def test_several_problems_of_a_root_are_named(folder: Path) -> None:
    (folder / "own" / ".aws").mkdir()
    message = roots(settings_of(folder, ".")).message
    for held in ("the home", "the state folder of the service", f"the credentials {folder}/own/.aws"):
        assert held in message
