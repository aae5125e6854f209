"""Files in memory hold complete checkpoints only, for at most two loads, and end with the process that made them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from worker.checkpoint.memory_files import (
    FILES_VARIABLE,
    MAX_LOADS,
    CreatedFiles,
    MemoryFile,
    available_memory,
    created_files,
    files_of,
)


def index_of(step: int) -> dict[str, object]:
    return {"step": step, "world": 1, "tensors": []}


def write(file: MemoryFile, step: int, content: bytes) -> None:
    file.begin(index_of(step), len(content))[:] = content
    file.commit(index_of(step), file.digest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file"


class TestContent:
    def test_another_process_reads_what_was_committed(self, path: Path) -> None:
        write(MemoryFile(path), 7, b"tensors")
        reader = MemoryFile(path)
        index = reader.read()
        assert index is not None
        assert (index["step"], reader.step) == (7, 7)
        data = reader.load(index)
        assert data is not None
        assert bytes(data) == b"tensors"

    def test_new_file_and_one_that_is_being_written_have_no_checkpoint(self, path: Path) -> None:
        assert MemoryFile(path).read() is None
        file = MemoryFile(path)
        write(file, 7, b"tensors")
        file.begin(index_of(8), 7)
        assert MemoryFile(path).read() is None
        assert file.step == 0

    @pytest.mark.parametrize("size", [1, 7, 100_000])
    def test_later_checkpoint_may_have_another_size(self, path: Path, size: int) -> None:
        file = MemoryFile(path)
        write(file, 7, b"x" * 5000)
        write(file, 8, b"y" * size)
        reader = MemoryFile(path)
        index = reader.read()
        assert index is not None
        data = reader.load(index)
        assert data is not None
        assert bytes(data) == b"y" * size

    def test_damaged_data_are_not_loaded(self, path: Path) -> None:
        write(MemoryFile(path), 7, b"tensors")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        reader = MemoryFile(path)
        index = reader.read()
        assert index is not None
        assert reader.load(index) is None

    def test_damaged_index_is_no_checkpoint(self, path: Path) -> None:
        write(MemoryFile(path), 7, b"tensors")
        content = bytearray(path.read_bytes())
        content[16:20] = b"\xff\xff\xff\xff"
        path.write_bytes(content)
        assert MemoryFile(path).read() is None

    def test_starts_that_may_load_it_are_counted(self, path: Path) -> None:
        write(MemoryFile(path), 7, b"tensors")
        for _ in range(MAX_LOADS):
            reader = MemoryFile(path)
            index = reader.read()
            assert index is not None
            assert reader.load(index) is not None
        assert MemoryFile(path).read() is None
        write(MemoryFile(path), 8, b"tensors")
        assert MemoryFile(path).read() is not None


class TestFilesOfRanks:
    def test_each_start_finds_the_same_files(self) -> None:
        with created_files() as files:
            first = files.variable([2, 3])
            assert files.variable([2, 3]) == first
            write(files_of(first, 3)[0], 5, b"tensors")
            assert [file.read() is not None for file in files_of(first, 3)] == [True, False]
            assert [file.read() for file in files_of(first, 2)] == [None, None]
        assert files_of(first, 3) == []

    def test_run_without_files_has_none(self) -> None:
        assert files_of({}, 0) == []
        assert files_of({FILES_VARIABLE: json.dumps({"1": []})}, 0) == []

    def test_kernel_without_such_files_is_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "memfd_create")
        assert CreatedFiles().variable([0]) == {}

    def test_programs_of_the_process_do_not_inherit_them(self) -> None:
        with created_files() as files:
            files.variable([0])
            opened = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, check=True, close_fds=False)
        assert b"memfd" not in opened.stdout


class TestAvailableMemory:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> tuple[Path, Path]:
        proc, groups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:   800 kB\n")
        (groups / "job" / "step").mkdir(parents=True)
        (groups / "memory" / "job").mkdir(parents=True)
        return proc, groups

    def test_memory_of_the_node_without_a_limit(self, folders: tuple[Path, Path]) -> None:
        proc, groups = folders
        (proc / "self" / "cgroup").write_text("0::/job/step\n")
        (groups / "job" / "memory.max").write_text("max\n")
        (groups / "job" / "memory.current").write_text("5\n")
        assert available_memory({}, proc, groups) == 800 * 1024

    def test_limit_of_a_group_above_counts(self, folders: tuple[Path, Path]) -> None:
        proc, groups = folders
        (proc / "self" / "cgroup").write_text("0::/job/step\n")
        (groups / "job" / "memory.max").write_text("5000\n")
        (groups / "job" / "memory.current").write_text("1000\n")
        assert available_memory({}, proc, groups) == 4000

    def test_first_version_of_groups(self, folders: tuple[Path, Path]) -> None:
        proc, groups = folders
        (proc / "self" / "cgroup").write_text("7:cpu:/job\n5:memory:/job\n")
        (groups / "memory" / "job" / "memory.limit_in_bytes").write_text("5000\n")
        (groups / "memory" / "job" / "memory.usage_in_bytes").write_text("6000\n")
        assert available_memory({}, proc, groups) == 0

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({"SLURM_MEM_PER_NODE": "1"}, 2**20),
            ({"SLURM_MEM_PER_CPU": "1", "SLURM_CPUS_ON_NODE": "2"}, 2 * 2**20),
            ({"SLURM_MEM_PER_CPU": "1"}, 8000 * 1024),
            ({"SLURM_MEM_PER_NODE": "0"}, 8000 * 1024),
            ({"SLURM_MEM_PER_NODE": "all"}, 8000 * 1024),
        ],
    )
    def test_limit_of_the_job_counts(self, folders: tuple[Path, Path], environ: dict[str, str], expected: int) -> None:
        proc, groups = folders
        (proc / "meminfo").write_text("MemAvailable:   8000 kB\n")
        (proc / "self" / "cgroup").write_text("0::/job/step\n")
        assert available_memory(environ, proc, groups) == expected

    def test_unknown_memory_is_none(self, tmp_path: Path) -> None:
        assert available_memory({}, tmp_path, tmp_path) == 0
