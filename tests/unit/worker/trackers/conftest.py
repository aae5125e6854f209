"""The folder of an attempt whose program reports to trackers."""

from pathlib import Path

import pytest

from trainyard.contract.layout import AttemptLayout, RunLayout


@pytest.fixture
def layout(tmp_path: Path) -> AttemptLayout:
    attempt = RunLayout(tmp_path / "job").attempt("1-a")
    attempt.root.mkdir(parents=True)
    return attempt
