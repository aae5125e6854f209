"""The size report."""

from pathlib import Path

import pytest

from tests.support import size_report


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(size_report, "ROOT", tmp_path)
    for package in (*size_report.PRODUCT, *size_report.OTHER_FOLDERS):
        (tmp_path / package).mkdir()
    return tmp_path


def function(lines: int) -> str:
    return "class A:\n    def f(self):\n" + "        pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("package", "text", "status", "output"),
    [
        ("service", function(50), 0, "50  service/a.py:A.f"),
        ("service", function(51), 1, "service/a.py:A.f has 51 lines, more than 50"),
        ("worker", "x = 1\n" * 600, 0, "600  worker/a.py"),
        ("worker", "x = 1\n" * 601, 1, "worker/a.py has 601 lines, more than 600"),
        ("tests", "x = 1\n" * 401, 0, "401      1  tests"),
    ],
)
def test_files_and_functions_over_the_limit_are_reported(
    tree: Path, capsys: pytest.CaptureFixture[str], package: str, text: str, status: int, output: str
) -> None:
    (tree / package / "a.py").write_text(text)
    assert size_report.main() == status
    assert output in capsys.readouterr().out


def test_exception_needs_a_reason_and_must_be_used(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_report, "REASONS", {"service/a.py:A.f": "because"})
    (tree / "service" / "a.py").write_text(function(60))
    assert size_report.main() == 0
    (tree / "service" / "a.py").write_text(function(6))
    assert size_report.main() == 1
    assert "service/a.py:A.f needs no exception any more" in capsys.readouterr().out
