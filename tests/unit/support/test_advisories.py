"""Known vulnerabilities of the dependencies: the list without a network, and the reports of pip-audit."""

import tomllib
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.support import advisories
from tests.support.advisories import ADVISORIES, CONSTRAINTS, ROOT, affected, audit_lines, lowest_versions

PINNED = advisories.pinned_versions(CONSTRAINTS.read_text())


def test_no_pinned_version_has_a_listed_vulnerability() -> None:
    assert list(affected(PINNED, "constraints.txt")) == []


def test_no_version_that_the_project_allows_has_a_listed_vulnerability() -> None:
    lowest = lowest_versions(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert {"starlette", "jinja2", "setuptools"} <= lowest.keys()
    assert list(affected(lowest, "pyproject.toml")) == []


def test_an_affected_version_is_named_with_the_fix() -> None:
    lines = list(affected({"starlette": "0.49.0", "jinja2": "3.1.6", "torch": "2.5.1+cpu"}, "installed"))
    assert lines == [
        "installed: starlette 0.49.0 has CVE-2025-62727; use 0.49.1 or later",
        "installed: starlette 0.49.0 has CVE-2026-48710; use 1.0.1 or later",
        "installed: starlette 0.49.0 has PYSEC-2026-248; use 1.3.0 or later",
        "installed: torch 2.5.1+cpu has CVE-2025-32434; use 2.6.0 or later",
    ]


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: one.id)
def test_advisories_are_about_dependencies_and_exclude_their_fix(advisory: advisories.Advisory) -> None:
    assert advisory.package in PINNED or advisory.package == "setuptools"
    assert not SpecifierSet(advisory.affected).contains(advisory.fixed)


def dependency(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "version": "1.0", **fields}


def test_reports_of_pip_audit_name_what_has_a_fix() -> None:
    fixed = {"id": "PYSEC-1", "fix_versions": ["1.1"]}
    report = {
        "dependencies": [
            dependency("a", vulns=[fixed, {"id": "PYSEC-2", "fix_versions": []}]),
            dependency("b", skip_reason="not on PyPI"),
        ]
    }
    assert audit_lines(report) == ["pip-audit: a 1.0 has PYSEC-1; use 1.1"]


def test_a_database_that_knows_no_package_was_not_reached() -> None:
    assert audit_lines({"dependencies": [dependency("a", skip_reason="not on PyPI")]}) is None


def test_a_missing_or_silent_pip_audit_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(advisories, "find_spec", lambda _name: None)
    assert advisories.run_pip_audit() is None
    assert advisories.main() == 0
    assert "pip-audit skipped" in capsys.readouterr().err
