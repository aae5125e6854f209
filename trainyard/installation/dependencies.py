"""`python3 -m trainyard.installation.dependencies EXTRA,... EFFORT`: install the clone with these extras into .venv.

uv installs where it is on the PATH, and pip otherwise. Both take the packages from the indexes and folders that pip is
configured with, and so the same build of torch.
"""

import ast
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

VENV = Path(".venv")
_PYTHON = str(VENV / "bin" / "python")
_OLDEST = (3, 11)
_SECTIONS = ("global", "install", ":env:")
"""The sections of pip's settings that apply to an installation; a later section wins."""
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "no-index": "UV_NO_INDEX",
}
"""Settings of pip, which uv does not read, and its variables of the same meaning."""


class InstallationError(Exception):
    """The clone cannot be installed; the message has the hint."""


def main(extras: str, effort: str) -> None:
    """Make the virtual environment if no usable one exists, and install the clone with its dependencies.

    Args:
        effort: description of the download and its duration.

    Raises:
        InstallationError: This Python is too old.
        CalledProcessError: an installation failed; it has printed why.
    """
    if sys.version_info < _OLDEST:
        current, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, _OLDEST))
        raise InstallationError(
            f"{sys.executable} is Python {current}; name {needed} or newer: make PYTHON=python{needed}"
        )
    uv = shutil.which("uv")
    with _one_at_a_time():
        program = "uv" if uv else "pip"
        print(f"Installing trainyard[{extras}] into {VENV} with {program}: {effort}.", flush=True)
        started = time.monotonic()
        _prepare()
        command = [uv, "pip", "install", "--python", _PYTHON] if uv else [_PYTHON, "-m", "pip", "install"]
        quiet = [] if sys.stdout.isatty() else ["--quiet"]
        # Modules are compiled when they are first imported; to compile them all takes as long as to install them.
        own = [] if uv else ["--no-compile"]
        project = ["--constraint", "constraints.txt", "--editable", f".[{extras}]"]
        environment = {**uv_variables(pip_settings()), **os.environ} if uv else None
        subprocess.run([*command, *quiet, *own, *project], env=environment, check=True)
        print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait until no other installation into this clone is running, such as by another target of `make -j`."""
    with open("pyproject.toml") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"Waiting for another installation into {VENV}.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare() -> None:
    """Make the virtual environment, or make it again if its Python or its programs cannot be used, and give it pip."""
    if VENV.exists() and (problem := _problem()):
        print(f"Making {VENV} again: {problem}.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    elif not VENV.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    elif subprocess.run([_PYTHON, "-c", "import pip"], stderr=subprocess.DEVNULL, check=False).returncode:
        # As an interrupted `venv` leaves it, and `uv venv` makes it.
        subprocess.run([_PYTHON, "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=True)


def _problem() -> str | None:
    """Return why the virtual environment cannot be used; None if it can."""
    try:
        version = subprocess.run(
            [_PYTHON, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], stdout=subprocess.PIPE, text=True
        )
    except OSError:
        return "its Python is missing"
    own = ".".join(map(str, sys.version_info[:2]))
    if version.returncode or version.stdout.strip() != own:
        return f"its Python is not {own}"
    scripts = (VENV / "bin").glob("pip*")
    if any(str(VENV.absolute()) not in script.read_text(errors="replace")[:1000] for script in scripts):
        return "it was made in another folder, whose programs it would start"
    return None


def pip_settings() -> dict[str, str]:
    """Return the settings of pip for an installation, from its files and from the environment."""
    listed = subprocess.run([_PYTHON, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True)
    return parse_settings(listed.stdout)


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings in the output of `pip config list`, in which a line is `global.index-url='URL'`."""
    settings: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in _SECTIONS:
            rank = _SECTIONS.index(section)
            settings[name] = max(settings.get(name, (-1, "")), (rank, str(ast.literal_eval(value))))
    return {name: value for name, (_, value) in settings.items()}


def uv_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make uv look for packages where these settings make pip look."""
    # pip separates several values by any whitespace.
    values = {variable: settings[name].split() for name, variable in _VARIABLES.items() if name in settings}
    variables = {name: ("," if name == "UV_FIND_LINKS" else " ").join(parts) for name, parts in values.items()}
    if "UV_INDEX" in variables:
        # pip takes the best version of all indexes, where uv would look into the first that has the package alone.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except InstallationError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print("Interrupted; the same command continues.", file=sys.stderr)
        sys.exit(130)
