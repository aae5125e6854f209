"""Our packages for ranks in another Python: a folder on their search path with nothing else of the service's Python."""

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path

OUR_PACKAGES = ("trainyard", "worker")
_HELPER_FILES = ("__init__.py", "script.py", "reported_names.py")
_MORE_MODULES = """
# The other modules of an installed Trainyard stay importable.
__path__ = __import__("pkgutil").extend_path(__path__, __name__)
"""


def provide_hook(folder: Path) -> None:
    """Make Python record the exception that ends a program, wherever the folder is on its search path."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / ".sitecustomize.new"
    fresh.write_text((package_folder("worker") / "environment" / "program_hook.py").read_text())
    os.replace(fresh, folder / "sitecustomize.py")


def provide_worker(folder: Path) -> None:
    """Make `worker` and `trainyard` importable from the folder, as links to the service's packages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OUR_PACKAGES:
        link = folder / name
        # A previous launcher of the attempt may have been killed after it made the link.
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(package_folder(name), target_is_directory=True)


def provide_helper(folder: Path) -> None:
    """Make `trainyard.script` importable from the folder; it needs the standard library alone."""
    target = folder / "trainyard"
    target.mkdir(parents=True, exist_ok=True)
    for name in _HELPER_FILES:
        text = (package_folder("trainyard") / name).read_text()
        fresh = target / f".{name}.new"
        fresh.write_text(text + _MORE_MODULES if name == "__init__.py" else text)
        os.replace(fresh, target / name)


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent
