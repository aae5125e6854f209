"""A wheel has all that the packages need, and works outside of a clone."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trainyard.contract.local_paths import admin_token_file
from trainyard.demo import ServiceProcess

pytestmark = [pytest.mark.heavy, pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
PACKAGES = ("jobs_templates", "migrations", "service", "trainyard", "worker")
OTHERS = ("docs", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
"""What the build reads beside the packages, as far as it exists."""
LEFT_OUT = re.compile(r"service/web/(documentation/images|types)/|.*/README\.md")
"""The picture of the README, the types of scripts that the check reads, and texts for developers."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, as in a new clone."""
    folder = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "_sync")
    for name in (*PACKAGES, *OTHERS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (file,) = target.iterdir()
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel, and with the dependencies of this one."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    # The path alone: Python reads no file of the editable installation there.
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


class InstalledService(ServiceProcess):
    """A service of the wheel."""

    def __init__(self, folder: Path, programs: Path) -> None:
        super().__init__(folder)
        self._programs = programs

    def _command(self) -> list[str]:
        return [str(self._programs / "trainyard"), "serve"]


@pytest.fixture
def service(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    """A service that was started from an empty folder."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process = InstalledService(tmp_path, installed)
    process.start()
    yield process
    process.stop()


def files_of_packages(source: Path) -> Iterator[str]:
    for package in PACKAGES:
        for folder, _, names in os.walk(source / package, followlinks=True):
            if not folder.endswith("__pycache__"):  # of the build backend, which the build has imported
                yield from (str((Path(folder) / name).relative_to(source)) for name in names)


def test_a_wheel_has_exactly_the_files_of_the_packages(source: Path, wheel: Path) -> None:
    expected = {name for name in files_of_packages(source) if not LEFT_OUT.match(name)}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "trainyard/client/_sync/client.py" in packed


def test_an_installed_wheel_serves_pages_and_trains(installed: Path, service: ServiceProcess) -> None:
    with service.client() as client:
        assert client.ready()
    token = admin_token_file(service.state_dir).read_text().strip()
    with httpx.Client(base_url=service.url, headers={"Origin": service.url}) as browser:
        browser.post("/sign-in", data={"token": token})
        for path, text in (("/livez", "{"), ("/", "<title>"), ("/help", "Glossary"), ("/help/spec", "optimizer")):
            shown = browser.get(path, follow_redirects=True)
            assert (shown.status_code, text in shown.text) == (200, True), path
    environment = {**os.environ, "TRAINYARD_URL": service.url, "TRAINYARD_TOKEN": token}
    submit = [str(installed / "trainyard"), "submit", "digits_ddp", "--set", "epochs=1", "--set", "gpus=1", "--watch"]
    done = subprocess.run(submit, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    modules = [
        str(installed / "python"),
        "-c",
        "import service, trainyard; print(service.__file__, trainyard.__file__)",
    ]
    shown = subprocess.run(modules, capture_output=True, text=True, check=True).stdout.split()
    assert all(Path(file).is_relative_to(installed.parent) for file in shown)
