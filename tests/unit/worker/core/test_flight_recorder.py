"""A rank writes its latest collectives when the launcher suspects or announces a stall."""

import pickle

import pytest
import torch
from torch import distributed as dist

from tests.support.wait import wait_until
from trainyard.contract.layout import RunLayout
from worker.core import flight_recorder
from worker.core.flight_recorder import parse_record, read_latest, write_latest, write_on_request


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
    first, second = group[-2:]
    assert (first.name, first.sizes, first.bytes, first.is_complete) == ("all_reduce", [[7, 3]], 84, True)
    assert (second.name, second.bytes, second.number - first.number) == ("broadcast", 10, 1)


@pytest.mark.parametrize("record", [None, [], {"entries": [{"state": "started"}]}, {"entries": [{"is_p2p": False}]}])
def test_record_of_an_unknown_form_is_no_locked_interpreter(tmp_path, monkeypatch, record):
    """Another release of torch may record other fields. The file states that the rank has replied."""
    attempt = RunLayout(tmp_path).attempt("1-a1")
    monkeypatch.setattr(flight_recorder, "_dump", lambda **_: pickle.dumps(record))
    write_latest(attempt.collectives(0), 1)
    assert read_latest(attempt, 1) == {0: {}}


def test_groups_of_one_name_differ_by_their_ranks():
    """torch gives one name to the groups that one split of a group makes; only records of NCCL list their ranks."""
    entry = {"is_p2p": False, "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "started"}
    entry |= {"retired": False, "input_sizes": [[4]], "input_dtypes": ["Float"]}
    entries = [{**entry, "process_group": (name, "")} for name in ("0", "3", "5")]
    ranks = {"0": "[0, 1, 2, 3]", "3": "[2, 3]", "5": "[]"}
    config = {name: {"name": name, "ranks": members} for name, members in ranks.items()}
    assert list(parse_record({"entries": entries, "pg_config": config})) == ["0", "3 [2, 3]", "5"]
    assert list(parse_record({"entries": entries})) == ["0", "3", "5"]
