"""Each rank describes the files that it wrote, and verifies a part of a checkpoint's files."""

import threading
from datetime import UTC, datetime

import pytest

from trainyard.contract.layout import RunLayout
from trainyard.contract.wire.manifest import Manifest
from worker.checkpoint import digests
from worker.checkpoint.digests import DigestError, describe_files, shared_verification, verify

WORLD = 3


class ThreadRank:
    """One of several ranks that are threads of this process."""

    def __init__(self, rank, slots, barrier):
        self.rank, self.world, self.is_rank_0 = rank, WORLD, rank == 0
        self.checkpoints = self
        self.slots, self._barrier = slots, barrier

    def exchange(self, value):
        self.slots[self.rank] = value
        self._barrier.wait(10)
        values = list(self.slots)
        self._barrier.wait(10)
        return values

    def broadcast(self, value, source=0):
        return self.exchange(value)[source]

    gather_text = exchange


@pytest.fixture
def on_ranks(monkeypatch):
    """Return a function that calls another one on every rank, and returns their results or exceptions."""

    def all_gather_object(parts, own, group):
        parts[:] = group.exchange(own)

    monkeypatch.setattr(digests.dist, "all_gather_object", all_gather_object)

    def call(function):
        slots, barrier, results = [None] * WORLD, threading.Barrier(WORLD), [None] * WORLD

        def run(rank):
            try:
                results[rank] = function(ThreadRank(rank, slots, barrier))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return call


@pytest.fixture
def checkpoint(tmp_path):
    checkpoint = RunLayout(tmp_path).checkpoint(5)
    checkpoint.root.mkdir(parents=True)
    for rank in range(WORLD):
        (checkpoint.root / f"__{rank}_0.distcp").write_bytes(b"weights" * (rank + 1))
    (checkpoint.root / ".metadata").write_bytes(b"index")
    return checkpoint


@pytest.fixture
def read(monkeypatch):
    """The files that each thread reads."""
    files = {}
    original = digests.file_sha256

    def record(path):
        files.setdefault(threading.get_ident(), []).append(path.name)
        return original(path)

    monkeypatch.setattr(digests, "file_sha256", record)
    return files


def manifest(files):
    about = {"job_id": "j", "step": 5, "execution": 1, "attempt": 1, "strategy": "fsdp", "metrics": {}}
    return Manifest(**about, world_size=WORLD, files=files, created_at=datetime.now(UTC))


def test_each_rank_reads_what_it_wrote_and_rank_0_also_the_index(on_ranks, checkpoint, read):
    described = on_ranks(lambda ranks: describe_files(checkpoint, ranks))[0]
    assert sorted(described) == [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]
    assert sorted(map(sorted, read.values())) == [[".metadata", "__0_0.distcp"], ["__1_0.distcp"], ["__2_0.distcp"]]
    verify(checkpoint, manifest(described))


def test_a_rank_that_cannot_read_its_files_fails_all(on_ranks, checkpoint):
    (checkpoint.root / "__1_0.distcp").unlink()
    (checkpoint.root / "__1_0.distcp").mkdir()
    for error in on_ranks(lambda ranks: describe_files(checkpoint, ranks)):
        assert isinstance(error, DigestError)
        assert str(error).startswith("rank 1: ")


def verify_on(ranks, *checkpoints):
    """Verify checkpoints one after the other; return the problems."""
    problems = []
    with shared_verification(ranks) as check:
        for checkpoint, about in checkpoints if ranks.is_rank_0 else ():
            try:
                check(checkpoint, about)
                problems.append("")
            except ValueError as error:
                problems.append(str(error))
    return problems


def test_files_are_verified_by_all_ranks(on_ranks, checkpoint, read):
    about = manifest(on_ranks(lambda ranks: describe_files(checkpoint, ranks))[0])
    read.clear()
    assert on_ranks(lambda ranks: verify_on(ranks, (checkpoint, about), (checkpoint, about)))[0] == ["", ""]
    assert len(read) == WORLD
    assert sorted(name for names in read.values() for name in names) == sorted([*about.files, *about.files])


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"])
def test_damage_in_any_part_is_named_on_rank_0(on_ranks, checkpoint, name):
    about = manifest(on_ranks(lambda ranks: describe_files(checkpoint, ranks))[0])
    content = (checkpoint.root / name).read_bytes()
    (checkpoint.root / name).write_bytes(content[:-1] + b"!")
    (problem,) = on_ranks(lambda ranks: verify_on(ranks, (checkpoint, about)))[0]
    assert problem == f"{name} has another digest"


def test_an_error_on_rank_0_releases_the_other_ranks(on_ranks):
    def fail(ranks):
        with shared_verification(ranks):
            if ranks.is_rank_0:
                raise KeyError("a bug")
        return "released"

    first, *others = on_ranks(fail)
    assert isinstance(first, KeyError)
    assert others == ["released", "released"]
