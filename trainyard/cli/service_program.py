"""Starts the service's program, which the command line does not import, or explains why it cannot start."""

import re
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import trainyard

_EXTRA = re.compile(r"""(?P<name>[A-Za-z0-9_.-]+).*;.*\bextra == ["']service["']""")
_ROOT = Path(trainyard.__file__).resolve().parents[1]


def service_command(*arguments: str) -> list[str]:
    """The command of the service's program, which takes no module from the current folder unless it is the source tree.

    In the folder that holds a clone named `trainyard`, that clone would otherwise hide the package.
    """
    in_source_tree = Path.cwd() == _ROOT
    return [sys.executable, *([] if in_source_tree else ["-P"]), "-m", "service", *arguments]


def service_problem() -> str | None:
    """Why the service cannot start here: packages that are missing, with the command that installs them."""
    if find_spec("service") is None:
        return "the service is not installed here; install it with: pip install 'trainyard[service,worker]'"
    if lacking := missing_packages(_requirements(), _is_installed):
        return (
            f"the service lacks packages: {', '.join(lacking)}; install what it needs with: "
            "pip install 'trainyard[service,worker]', in a clone: pip install -c constraints.txt -e '.[service,worker]'"
        )
    return None


def missing_packages(requirements: list[str], is_installed: Callable[[str], bool]) -> list[str]:
    """The packages of the extra `service` that are not installed.

    Args:
        requirements: Lines of the project's metadata: `fastapi>=0.133; extra == "service"`.
    """
    names = [match["name"] for line in requirements if (match := _EXTRA.match(line))]
    return [name for name in names if not is_installed(name)]


def _requirements() -> list[str]:
    """The requirements of the installed project; none for a source tree that is only on the path."""
    try:
        return metadata.requires("trainyard") or []
    except metadata.PackageNotFoundError:
        return []


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
