"""Processes are found by their parents, whether or not the kernel lists the children of a thread."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.wait import wait_until
from worker.core import processes

NESTED = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture(params=[True, False], ids=["children of threads", "all processes"])
def lists_children(request, monkeypatch):
    monkeypatch.setattr(processes, "_lists_children", lambda: request.param)


@pytest.mark.usefixtures("lists_children")
class TestDescendants:
    def test_children_of_children_are_included(self):
        with subprocess.Popen([sys.executable, "-c", NESTED], stdin=subprocess.PIPE) as outer:
            try:
                (inner,) = wait_until(lambda: processes.children(outer.pid), what="the inner process")
                assert [pid for pid, _ in processes.descendants(outer.pid)] == [inner]
                assert outer.pid in processes.children(os.getpid())
            finally:
                outer.stdin.close()

    def test_children_of_all_threads_are_included(self):
        started = []
        thread = threading.Thread(target=lambda: started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE)))
        thread.start()
        thread.join()
        assert started[0].pid in processes.children(os.getpid())
        started[0].communicate()
        assert started[0].pid not in processes.children(os.getpid())

    def test_children_that_move_to_another_thread_are_included(self, monkeypatch, tmp_path):
        lists = {name: tmp_path / "9" / "task" / name / "children" for name in ("1", "2")}
        for file in lists.values():
            file.parent.mkdir(parents=True)
            file.write_text("")
        reads = []

        def read_text(file):
            """The thread that is read first takes the child of the other one, which ends, just afterwards."""
            reads.append(file)
            here = len(reads) > len(lists) and file == reads[0]
            return "7 " if here else ""

        monkeypatch.setattr(processes, "_PROC", tmp_path)
        monkeypatch.setattr(processes, "_lists_children", lambda: True)
        monkeypatch.setattr(Path, "read_text", read_text)
        assert processes.children(9) == [7]

    def test_a_process_that_has_ended_has_none(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        assert processes.descendants(ended.pid) == []
