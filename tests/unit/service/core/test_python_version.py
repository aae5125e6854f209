"""The security fixes that a release of Python lacks, and where the service reports them."""

import sys

import pytest

from service import main
from service.core.python_version import FIXES, describe_missing, missing_fixes


@pytest.mark.parametrize(
    ("version", "cves"),
    [
        ((3, 11, 7), {fix.cve for fix in FIXES}),
        ((3, 11, 13), {"CVE-2025-8194", "CVE-2026-0672"}),
        ((3, 11, 15), set()),
        ((3, 12, 5), {fix.cve for fix in FIXES} - {"CVE-2024-4032"}),
        ((3, 13, 0), {fix.cve for fix in FIXES if 13 in fix.patches}),
        ((3, 13, 12), set()),
        ((3, 14, 0), {"CVE-2026-0672"}),
        ((3, 14, 3), set()),
        ((3, 15, 0), set()),
    ],
)
def test_missing_fixes_follow_from_the_patch_release(version: tuple[int, int, int], cves: set[str]) -> None:
    assert {fix.cve for fix in missing_fixes(version)} == cves
    assert (describe_missing(version) is None) == (not cves)


def test_message_names_the_fixes_and_the_release_that_has_them() -> None:
    message = str(describe_missing((3, 11, 14)))
    assert message.startswith("Python 3.11.14 was released before the fixes of CVE-2026-0672,")
    assert message.endswith("; 3.11.15 has all")


@pytest.mark.parametrize(("patch", "warned"), [(7, True), (99, False)])
def test_an_old_release_is_a_warning_at_the_start_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], patch: int, warned: bool
) -> None:
    monkeypatch.setattr(main, "serve", lambda _settings: 0)
    monkeypatch.setattr(main, "configure_logging", lambda _form: None)
    monkeypatch.setattr(sys, "version_info", (3, 11, patch, "final", 0))
    assert main.main(["serve"]) == 0
    captured = capfd.readouterr()
    assert ("CVE-2025-8194" in captured.out + captured.err) == warned
