"""Each part declares the packages that it imports, as its image and its users install nothing else."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
OWN = {"bench", "jobs_templates", "migrations", "service", "tests", "trainyard", "worker"}
INSTALLED_WITH = {
    "anyio": "starlette",
    "click": "typer",
    "packaging": "transformers",
    "tokenizers": "transformers",
    # With CUDA; imported only if it is there.
    "triton": "torch",
}
"""Packages that a declared one installs."""
EXTRAS = {"service": ("service",), "worker": ("worker", "hf", "data", "fp8", "examples", "tensorboard")}


def imported_modules(folder: Path) -> set[str]:
    """Return the first parts of the names of all imported modules."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - OWN - set(sys.stdlib_module_names)


@pytest.mark.parametrize("part", EXTRAS)
def test_every_imported_package_is_declared(part: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"]]
    for extra in EXTRAS[part]:
        declared += project["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(line).name) for line in declared}
    distributions = packages_distributions()
    missing = {}
    for module in sorted(imported_modules(ROOT / part)):
        owners = {canonicalize_name(INSTALLED_WITH.get(name, name)) for name in distributions.get(module, [module])}
        if not owners & names:
            missing[module] = owners
    assert missing == {}
