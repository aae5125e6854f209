"""The files of a run: their paths, atomic writes and exclusive creation."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainyard.contract.layout import RunLayout, create_exclusive, write_atomic

SIZE = 200_000


class TestWriteAtomic:
    def test_write_creates_the_folder_and_sets_the_mode(self, tmp_path):
        path = tmp_path / "a" / "b" / "token"
        write_atomic(path, "secret", mode=0o600)
        assert path.read_text() == "secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_mode_is_at_most_what_the_umask_allows(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_atomic(tmp_path / "plain", "x")
            write_atomic(tmp_path / "private", "x", mode=0o600)
        finally:
            os.umask(before)
        assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "private")] == [0o640, 0o600]

    def test_readers_get_the_whole_file_of_one_writer(self, tmp_path):
        path, done, partial_reads = tmp_path / "file", threading.Event(), []
        write_atomic(path, b"0" * SIZE)

        def read():
            while not done.is_set():
                data = path.read_bytes()
                if len(data) != SIZE or len(set(data)) != 1:
                    partial_reads.append(data[:10])

        def write(letter):
            for _ in range(20):
                write_atomic(path, letter * SIZE)

        with ThreadPoolExecutor(6) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            writers = [pool.submit(write, letter) for letter in (b"1", b"2", b"3")]
            try:
                [writer.result() for writer in writers]
            finally:
                done.set()
            [reader.result() for reader in readers]
        assert partial_reads == []
        assert os.listdir(tmp_path) == ["file"]

    def test_failed_write_leaves_only_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        write_atomic(path, "old")

        def full(_):
            raise OSError("no space left")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            write_atomic(path, "new")
        assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


class TestCreateExclusive:
    def test_one_of_several_writers_wins(self, tmp_path):
        path, start = tmp_path / "run" / "claim.json", threading.Barrier(16)

        def claim(number):
            start.wait()
            return create_exclusive(path, str(number) * 1000)

        with ThreadPoolExecutor(16) as pool:
            winners = [number for number, made in enumerate(pool.map(claim, range(16))) if made]
        assert len(winners) == 1
        assert path.read_text() == str(winners[0]) * 1000
        assert os.listdir(path.parent) == ["claim.json"]

    def test_own_link_is_recognized_after_a_lost_answer(self, tmp_path, monkeypatch):
        link = os.link

        def retried(source, target):
            link(source, target)
            raise FileExistsError(17, "File exists")

        monkeypatch.setattr(os, "link", retried)
        assert create_exclusive(tmp_path / "claim.json", "{}") is True
        monkeypatch.setattr(os, "link", link)
        assert create_exclusive(tmp_path / "claim.json", "{}") is False


class TestRunLayout:
    def test_folder_without_a_manifest_is_not_a_checkpoint(self, tmp_path):
        run = RunLayout(tmp_path)
        assert run.complete_checkpoints() == []
        for step in (300, 20, 100):
            run.checkpoint(step).root.mkdir(parents=True)
        (run.checkpoints / "step-junk").mkdir()
        (run.checkpoints / "step-0000000007.tmp").mkdir()
        write_atomic(run.checkpoint(300).manifest, "{}")
        write_atomic(run.checkpoint(20).manifest, "{}")
        assert [checkpoint.step for checkpoint in run.complete_checkpoints()] == [20, 300]

    def test_no_two_files_of_an_attempt_share_a_path(self, tmp_path):
        attempt = RunLayout(tmp_path).attempt("3-ab")
        paths = [attempt.token, attempt.launch, attempt.claim, attempt.stop_request, attempt.launch_log]
        paths += [make(n) for n in (1, 2) for make in (attempt.rank_log, attempt.rank_error, attempt.finish)]
        paths += [make(n) for n in (1, 2) for make in (attempt.spool_file, attempt.spool_acknowledged)]
        assert len(set(paths)) == len(paths)
        assert all(path.is_relative_to(tmp_path / "attempts" / "3-ab") for path in paths)
