"""A run reports the accounts of its data when it starts, and not again when it continues."""

import json
from types import SimpleNamespace

import pytest

from trainyard.contract.allowed_roots import UNRESTRICTED_ROOTS
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.progress_file import ProgressCounter
from worker.core.errors import RefusedError
from worker.rank.load_task import load_task


@pytest.fixture
def events(tmp_path):
    """Load the task of a run, and return the events that it reports before the task is there."""

    def load(start_step=0, *, is_fork=False, **data):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"prompt": "a" * 9, "completion": "b"}) + "\n")
        model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 32}
        section = {"source": "jsonl", "path": str(path), **data}
        spec = parse_spec({"task": "causal_lm", "model": model, "data": section, "steps": 1})
        reported = []
        reporter = SimpleNamespace(event=lambda kind, message, *, level, data: reported.append((kind, data)))
        parts = {
            "launch": SimpleNamespace(roots=UNRESTRICTED_ROOTS),
            "layout": RunLayout(tmp_path / "runs" / "job"),
            "ranks": SimpleNamespace(is_rank_0=True, world=1),
            "reporter": reporter,
            "checkpoints": SimpleNamespace(start_step=start_step, is_fork=is_fork),
            "progress": ProgressCounter(),
        }
        parts["layout"].root.mkdir(parents=True, exist_ok=True)
        try:
            load_task(spec, **parts)
        except RefusedError:
            reported.append(("refused", {}))
        return reported

    return load


def test_first_attempt_reports_each_source(events, tmp_path):
    ((kind, data),) = events()
    assert (kind, data["section"], data["examples"]) == ("data_account", "data.path", 1)
    # The tokens are in the cache now.
    assert events() == [(kind, data)]


def test_attempt_that_continues_reports_nothing(events):
    assert events(3) == []


def test_fork_reports(events):
    assert [kind for kind, _ in events(3, is_fork=True)] == ["data_account"]


def test_run_that_is_refused_has_reported(events):
    assert [kind for kind, _ in events(max_length=4)] == ["data_account", "refused"]
