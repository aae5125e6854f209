"""A rank writes its latest collectives among the files of the run when the launcher announces a stall."""

import pickle

from trainyard.contract.layout import RunLayout
from worker.core.flight_recorder import write_on_stall


def test_a_stalled_rank_writes_its_latest_collectives(tmp_path):
    run = RunLayout(tmp_path)
    attempt = run.attempt("1-a1")
    attempt.root.mkdir(parents=True)
    thread = write_on_stall(attempt, 3, poll_seconds=0.01)
    assert not run.artifacts.exists()
    attempt.stalled.write_text("rank 3 is behind")
    thread.join(60)
    (record,) = (path for path in run.artifacts.rglob("*") if path.is_file())
    assert record == run.artifacts / "flight_recorder" / "1-a1" / "rank_3"
    assert "version" in pickle.loads(record.read_bytes())
