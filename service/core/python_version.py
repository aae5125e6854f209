"""The security fixes of Python that matter for the service, and which of them the running version may lack."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PythonFix:
    """One fixed vulnerability of the standard library."""

    cve: str
    subject: str
    """The use of it in the service, and how the service is safe without the fix."""
    patches: dict[int, int]
    """The first fixed patch release of each minor release of Python 3 that was ever affected."""


FIXES = (
    PythonFix("CVE-2024-7592", "cookies are parsed without http.cookies", {11: 10, 12: 6}),
    PythonFix("CVE-2024-4032", "webhooks refuse the address ranges themselves", {11: 10, 12: 4}),
    PythonFix("CVE-2024-6232", "heads of uploaded archives are parsed by tarfile on the nodes", {11: 10, 12: 6}),
    PythonFix("CVE-2025-4517", "archives are unpacked without tarfile's filters", {11: 13, 12: 11, 13: 4}),
    PythonFix("CVE-2025-4330", "archives are unpacked without tarfile's filters", {11: 13, 12: 11, 13: 4}),
    PythonFix("CVE-2025-4138", "archives are unpacked without tarfile's filters", {11: 13, 12: 11, 13: 4}),
    PythonFix("CVE-2025-4435", "archives are unpacked without tarfile's filters", {11: 13, 12: 11, 13: 4}),
    PythonFix("CVE-2025-8194", "archives may make tarfile loop on the nodes", {11: 14, 12: 12, 13: 6}),
    PythonFix("CVE-2026-0672", "the service sets cookies of its own values only", {11: 15, 12: 13, 13: 12, 14: 3}),
)
"""Sources: the affected versions in the CVE records of the Python Software Foundation."""


def missing_fixes(version: tuple[int, int, int]) -> list[PythonFix]:
    """Return the fixes that came after a patch release. Distributions backport them without a new number."""
    _, minor, patch = version
    return [fix for fix in FIXES if patch < fix.patches.get(minor, 0)]


def describe_missing(version: tuple[int, int, int]) -> str | None:
    """Return a sentence that names the missing fixes and the release that has all of them; None if none is missing."""
    missing = missing_fixes(version)
    if not missing:
        return None
    minor = version[1]
    newest = max(fix.patches[minor] for fix in missing)
    names = ", ".join(fix.cve for fix in missing)
    return (
        f"Python {'.'.join(map(str, version))} was released before the fixes of {names}, "
        f"unless your distribution has backported them; 3.{minor}.{newest} has all"
    )
