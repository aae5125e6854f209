"""`python -m tests.support.advisories`: check the dependencies for known vulnerabilities.

A list of advisories works without a network; pip-audit adds those of its database if that can be reached.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
_SECONDS = 45


@dataclass(frozen=True)
class Advisory:
    """A vulnerability of a package that the project installs, directly or not."""

    package: str
    affected: str
    id: str
    fixed: str


ADVISORIES = (
    Advisory("aiohttp", "<3.13.3", "CVE-2025-69223", "3.13.3"),
    Advisory("aiohttp", "<3.13.4", "PYSEC-2026-2103", "3.13.4"),
    Advisory("aiohttp", "<3.14.4", "PYSEC-2026-4369", "3.14.4"),
    Advisory("certifi", "<2023.7.22", "CVE-2023-37920", "2023.7.22"),
    Advisory("cryptography", ">=42.0.0,<44.0.1", "CVE-2024-12797", "44.0.1"),
    Advisory("cryptography", "<46.0.5", "CVE-2026-26007", "46.0.5"),
    Advisory("cryptography", "<46.0.7", "CVE-2026-39892", "46.0.7"),
    Advisory("h11", "<0.16.0", "CVE-2025-43859", "0.16.0"),
    Advisory("idna", "<3.7", "CVE-2024-3651", "3.7"),
    Advisory("jinja2", "<3.1.6", "CVE-2025-27516", "3.1.6"),
    Advisory("mako", "<1.2.2", "CVE-2022-40023", "1.2.2"),
    Advisory("orjson", "<3.9.15", "CVE-2024-27454", "3.9.15"),
    Advisory("requests", "<2.32.4", "CVE-2024-47081", "2.32.4"),
    Advisory("scikit-learn", "<1.5.0", "CVE-2024-5206", "1.5.0"),
    Advisory("setuptools", "<78.1.1", "CVE-2025-47273", "78.1.1"),
    Advisory("starlette", ">=0.39.0,<0.49.1", "CVE-2025-62727", "0.49.1"),
    Advisory("starlette", "<1.0.1", "CVE-2026-48710", "1.0.1"),
    Advisory("starlette", "<1.3.0", "PYSEC-2026-248", "1.3.0"),
    Advisory("torch", "<2.6.0", "CVE-2025-32434", "2.6.0"),
    Advisory("transformers", "<4.48.0", "CVE-2024-11393", "4.48.0"),
    Advisory("urllib3", ">=1.24,<2.6.0", "CVE-2025-66418", "2.6.0"),
    Advisory("werkzeug", "<3.0.3", "CVE-2024-34069", "3.0.3"),
)


def pinned_versions(text: str) -> dict[str, str]:
    """Return the version of each package in a constraints file, by canonical name."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def lowest_versions(pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return the lowest version that each requirement of the project allows; "0" without a lower bound."""
    project = pyproject["project"]
    texts = [*pyproject["build-system"]["requires"], *project["dependencies"]]
    texts += [text for extra in project["optional-dependencies"].values() for text in extra]
    lowest: dict[str, str] = {}
    for requirement in map(Requirement, texts):
        bounds = [part.version for part in requirement.specifier if part.operator in (">=", "==", "~=")]
        lowest[canonicalize_name(requirement.name)] = bounds[0] if bounds else "0"
    return lowest


def affected(versions: Mapping[str, str], source: str) -> Iterator[str]:
    """Yield a line for each advisory that affects one of the versions."""
    for advisory in ADVISORIES:
        version = versions.get(advisory.package)
        if version is not None and SpecifierSet(advisory.affected).contains(version, prereleases=True):
            yield f"{source}: {advisory.package} {version} has {advisory.id}; use {advisory.fixed} or later"


def audit_lines(report: Mapping[str, Any]) -> list[str] | None:
    """Return a line for each vulnerability with a fix in a report of pip-audit; None if no package was audited."""
    dependencies = report["dependencies"]
    if all("skip_reason" in dependency for dependency in dependencies):
        return None
    return [
        f"pip-audit: {dependency['name']} {dependency['version']} has {vulnerability['id']}; "
        f"use {' or '.join(vulnerability['fix_versions'])}"
        for dependency in dependencies
        for vulnerability in dependency.get("vulns", ())
        if vulnerability["fix_versions"]
    ]


def run_pip_audit() -> list[str] | None:
    """Return what pip-audit reports about the pinned versions; None if it or its database is not available."""
    if find_spec("pip_audit") is None:
        return None
    options = ("--format", "json", "--progress-spinner", "off", "--timeout", "3", "--disable-pip", "--no-deps")
    command = [sys.executable, "-m", "pip_audit", *options, "--requirement", str(CONSTRAINTS)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        return audit_lines(json.loads(answer.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return None


def main() -> int:
    """Return the exit status: 1 if a version is affected."""
    pinned = pinned_versions(CONSTRAINTS.read_text())
    versions = {str(canonicalize_name(one.metadata["Name"])): one.version for one in distributions()}
    installed = {name: version for name, version in versions.items() if name in pinned}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [
        *affected(pinned, CONSTRAINTS.name),
        *affected(installed, "installed"),
        *affected(lowest_versions(pyproject), "pyproject.toml allows"),
    ]
    audited = run_pip_audit()
    if audited is None:
        print("pip-audit skipped: it is not installed, or its database does not answer", file=sys.stderr)
    lines += audited or []
    print("\n".join(lines) or f"none of {len(ADVISORIES)} listed advisories affects the dependencies")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
