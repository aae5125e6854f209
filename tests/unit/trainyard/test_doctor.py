"""`doctor` as far as the client's side goes."""

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from service.doctor import filesystem_of
from trainyard.cli.doctor import clock_finding

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("date", "state"),
    [
        ("Thu, 01 Jan 2026 12:00:01 GMT", "ok"),
        ("Thu, 01 Jan 2026 12:01:00 GMT", "warning"),
        ("yesterday", "warning"),
        (None, "warning"),
    ],
)
def test_clocks_that_differ_are_told(date, state):
    found = clock_finding(date, NOW)
    assert found.state == state
    assert (found.fix is None) == (state == "ok")


def test_a_service_that_does_not_answer_is_wrong_with_the_fix(run, monkeypatch):
    def refuse(*_args, **_options):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(httpx, "get", refuse)
    result = run("doctor")
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("WRONG"))
    assert "trainyard serve" in line


def test_the_innermost_mount_says_the_filesystem():
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/shared /shared nfs4 rw 0 0\ntmpfs /shared/fast tmpfs rw 0 0\n"
    assert filesystem_of(Path("/shared/runs"), mounts) == "nfs4"
    assert filesystem_of(Path("/shared/fast/x"), mounts) == "tmpfs"
    assert filesystem_of(Path("/sharedish"), mounts) == "ext4"
