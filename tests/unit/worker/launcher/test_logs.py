import os

import pytest

from worker.launcher import logs
from worker.launcher.logs import LogCaps

MB = 1024 * 1024


@pytest.fixture
def grown(tmp_path):
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"old line\n" * (MB // 9))
    with path.open("ab") as file:
        file.write(b"new line\n" * (MB // 9))
    return path


@pytest.mark.fault_scenario(53)
def test_start_of_a_long_log_is_freed_and_offsets_are_unchanged(grown):
    size, held, end = grown.stat().st_size, grown.stat().st_blocks, grown.read_bytes()[-MB // 2 :]
    LogCaps(MB).apply(grown)
    assert grown.stat().st_size == size
    if grown.stat().st_blocks == held:
        pytest.skip("this filesystem does not give blocks back")
    assert grown.stat().st_blocks * 512 <= MB
    content = grown.read_bytes()
    assert content[-MB // 2 :] == end
    assert content.lstrip(b"\0").startswith(b"\n[trainyard: the first ")


def test_writers_continue_to_append_after_truncation(grown):
    handle = os.open(grown, os.O_WRONLY | os.O_APPEND)
    LogCaps(MB).apply(grown)
    os.write(handle, b"after\n")
    os.close(handle)
    assert grown.read_bytes().endswith(b"new line\nafter\n")


def test_a_short_log_and_a_just_truncated_log_do_not_change(grown, monkeypatch):
    punched = []
    monkeypatch.setattr(logs, "_punch_hole", lambda path, end: punched.append(end))
    caps = LogCaps(MB)
    caps.apply(grown.with_name("missing.log").parent / "rank-0.log")
    caps.apply(grown)
    assert len(punched) == 1
    LogCaps(4 * MB).apply(grown)
    assert len(punched) == 1


def test_a_log_that_is_created_later_is_limited_too(grown):
    caps, later = LogCaps(MB), grown.with_name("rank-7.log")
    caps.apply(later)
    grown.rename(later)
    size = later.stat().st_blocks
    caps.apply(later)
    assert later.stat().st_blocks < size


def test_an_unsupported_filesystem_is_tried_once(grown, monkeypatch):
    requested = []

    def refuse(path, end):
        requested.append(path)
        raise OSError(95, "not supported")

    monkeypatch.setattr(logs, "_punch_hole", refuse)
    caps = LogCaps(MB)
    caps.apply(grown)
    caps.apply(grown)
    assert len(requested) == 1
