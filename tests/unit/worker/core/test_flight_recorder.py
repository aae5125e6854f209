"""A rank writes its latest collectives when the launcher suspects or announces a stall."""

import pickle

import pytest
import torch
from torch import distributed as dist

from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout
from worker.core import flight_recorder
from worker.core.flight_recorder import parse_record, read_latest, write_latest, write_on_request, write_record


def test_a_stalled_rank_writes_its_latest_collectives(tmp_path):
    run = RunLayout(tmp_path)
    attempt = run.attempt("1-a1")
    attempt.root.mkdir(parents=True)
    thread = write_on_request(attempt, 3, with_stacks=True, poll_seconds=0.01)
    assert not run.artifacts.exists()
    attempt.stall_request.write_text("2")
    wait_until(lambda: 3 in read_latest(attempt, 2))
    assert read_latest(attempt, 1) == {}
    attempt.stalled.write_text("rank 3 is behind")
    thread.join(60)
    (record,) = (path for path in run.artifacts.rglob("*") if path.is_file())
    assert record == run.artifacts / "flight_recorder" / "1-a1" / "rank_3"
    assert "version" in pickle.loads(record.read_bytes())


def test_collectives_of_gloo_have_their_number_name_and_size(tmp_path):
    """torch records the collectives of gloo too, and that a rank has left them."""
    attempt = RunLayout(tmp_path).attempt("1-a1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(7, 3))
        dist.broadcast(torch.ones(5, dtype=torch.bfloat16), 0)
        write_latest(attempt.collectives(0), 1)
    finally:
        dist.destroy_process_group()
    (group,) = read_latest(attempt, 1)[0].values()
    assert read_latest(attempt, 1)[0].keys() == {"gloo:0"}
    first, second = group[-2:]
    assert (first.name, first.sizes, first.bytes, first.is_complete) == ("all_reduce", [[7, 3]], 84, True)
    assert (second.name, second.bytes, second.number - first.number) == ("broadcast", 10, 1)


def record_of(backend, *numbers):
    entry = {"is_p2p": False, "state": "started", "retired": False, "input_sizes": [[4]], "input_dtypes": ["Float"]}
    entry |= {"process_group": ("0", "default_pg"), "profiling_name": f"{backend}:all_reduce"}
    return {"version": "2.10", "pg_config": {}, "entries": [entry | {"collective_seq_id": one} for one in numbers]}


@pytest.fixture
def recorded(monkeypatch):
    """Let torch, built with NCCL, have recorded these numbers of collectives of NCCL and of gloo."""

    def record(nccl, gloo):
        dumps = {"_dump_nccl_trace": record_of("nccl", *nccl), "_dump_fr_trace": record_of("gloo", *gloo)}
        for name, dump in dumps.items():
            monkeypatch.setattr(torch._C._distributed_c10d, name, lambda *_, one=dump: pickle.dumps(one), raising=False)

    return record


@pytest.mark.parametrize(
    ("nccl", "gloo", "latest"),
    [((), (7,), {"gloo:0": 7}), ((7,), (), {"nccl:0": 7}), ((7,), (3,), {"gloo:0": 3, "nccl:0": 7})],
)
def test_collectives_of_each_backend_are_recorded(tmp_path, recorded, nccl, gloo, latest):
    """torch that is built with NCCL records gloo's collectives separately, and both count from 1."""
    recorded(nccl, gloo)
    attempt = RunLayout(tmp_path).attempt("1-a1")
    write_latest(attempt.collectives(0), 1)
    assert {name: group[-1].number for name, group in read_latest(attempt, 1)[0].items()} == latest


@pytest.mark.parametrize(
    ("nccl", "gloo", "files"),
    [
        ((), (7,), {"rank_0": "gloo:all_reduce"}),
        ((7,), (3,), {"rank_0": "nccl:all_reduce", "gloo_rank_0": "gloo:all_reduce"}),
    ],
)
def test_file_for_torchfrtrace_has_the_backend_that_was_used(tmp_path, recorded, nccl, gloo, files):
    recorded(nccl, gloo)
    write_record(tmp_path / "rank_0")
    written = {path.name: pickle.loads(path.read_bytes()) for path in tmp_path.iterdir()}
    assert {name: record["entries"][0]["profiling_name"] for name, record in written.items()} == files


@pytest.mark.parametrize("record", [None, [], {"entries": [{"state": "started"}]}, {"entries": [{"is_p2p": False}]}])
def test_record_of_an_unknown_form_is_no_locked_interpreter(tmp_path, monkeypatch, record):
    """Another release of torch may record other fields. The file states that the rank has replied."""
    attempt = RunLayout(tmp_path).attempt("1-a1")
    monkeypatch.setattr(flight_recorder, "_dumps", lambda **_: [pickle.dumps(record)])
    write_latest(attempt.collectives(0), 1)
    assert read_latest(attempt, 1) == {0: {}}


def test_groups_of_one_name_differ_by_their_ranks():
    """torch gives one name to the groups that one split of a group makes; only records of NCCL list their ranks."""
    entry = {"is_p2p": False, "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "started"}
    entry |= {"retired": False, "input_sizes": [[4]], "input_dtypes": ["Float"]}
    entries = [{**entry, "process_group": (name, "")} for name in ("0", "3", "5")]
    ranks = {"0": "[0, 1, 2, 3]", "3": "[2, 3]", "5": "[]"}
    config = {name: {"name": name, "ranks": members} for name, members in ranks.items()}
    assert list(parse_record({"entries": entries, "pg_config": config})) == ["nccl:0", "nccl:3 [2, 3]", "nccl:5"]
    assert list(parse_record({"entries": entries})) == ["nccl:0", "nccl:3", "nccl:5"]
