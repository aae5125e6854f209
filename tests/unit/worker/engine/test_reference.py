"""The reference's log-probabilities: stored in parts, and read again by later executions."""

import numpy as np
import pytest
import torch

from tests.support.ranks import single_rank
from trainyard.contract.spec.sections import Amp
from trainyard.progress_file import ProgressCounter
from worker.core.errors import RefusedError
from worker.data.answers import Answer, answer_examples, labelled_rows
from worker.engine import reference
from worker.engine.precision import Precision
from worker.engine.reference import ReferenceFile, fill_reference
from worker.engine.strategies.base import ParallelModel
from worker.tasks.base import Task

STEPS = [np.array(batch) for batch in ([3, 1, 0], [2, 4, 5], [0, 2, 4], [5, 3, 1])]


class Run(Task):
    """The examples of a run, whose reference has the negative sum of the tokens as log-probability."""

    def __init__(self, path, digest="d"):
        answers = [Answer(np.int32([n + 1]), np.arange(10 * n, 11 * n + 1, dtype=np.int32)) for n in range(6)]
        self.examples = answer_examples([labelled_rows(answers, [True] * 6, 8)], {}, paired=False, length=8)
        self.file, self.events, self.forwards, self.fails_at = ReferenceFile(path, digest), [], 0, None

    def reference_logps(self, model, batch):
        self.forwards += 1
        if self.forwards == self.fails_at:
            raise KeyboardInterrupt
        return -batch[0].sum(dim=1).float()

    def event(self, type_, message, *, data):
        self.events.append(data["answers"])

    def fill(self, batches=STEPS, *, may_compute=True):
        module = torch.nn.Linear(1, 1)
        fill_reference(
            self,
            ParallelModel(module, module),
            Precision("fp32", Amp(), torch.device("cpu")),
            single_rank(),
            self.file,
            batches=batches,
            size=2,
            may_compute=may_compute,
            progress=ProgressCounter(),
            reporter=self,
        )
        pairs = self.examples.compared(STEPS)
        return self.examples.reference[:, 0].tolist(), self.examples.other_reference.or_nan(pairs).tolist()


def test_every_answer_of_every_step_is_read_once(tmp_path):
    run = Run(tmp_path / "reference.npz")
    own, others = run.fill()
    assert run.events == [6 + len(others)]
    pairs = [divmod(pair, 6) for pair in run.examples.compared(STEPS).tolist()]
    assert set(pairs) == {(3, 0), (1, 3), (0, 1), (2, 5), (4, 2), (5, 4), (0, 4), (2, 0), (5, 1), (3, 5)}
    # The last token is no input.
    assert own[3] == -(4 + 30 + 31 + 32)
    assert others[pairs.index((0, 1))] == -(1 + 10)


def test_next_execution_reads_what_is_stored(tmp_path):
    values = Run(tmp_path / "reference.npz").fill()
    later = Run(tmp_path / "reference.npz")
    assert later.fill(may_compute=False) == values
    assert (later.forwards, later.events) == (0, [])


def test_interrupted_execution_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "_BATCHES", 1)
    monkeypatch.setattr(reference, "_SECONDS_STORED", 0.0)
    whole = Run(tmp_path / "whole.npz")
    values = whole.fill()
    first, rest = Run(tmp_path / "reference.npz"), Run(tmp_path / "reference.npz")
    first.fails_at = 4
    with pytest.raises(KeyboardInterrupt):
        first.fill()
    assert rest.fill() == values
    assert rest.forwards == whole.forwards - 3


def test_steps_that_are_added_are_read_too(tmp_path):
    Run(tmp_path / "reference.npz").fill(STEPS[:2])
    more = Run(tmp_path / "reference.npz")
    assert more.fill() == Run(None).fill()
    assert more.events == [len(more.examples.compared(STEPS)) - len(more.examples.compared(STEPS[:2]))]


@pytest.mark.parametrize("lost", ["digest", "file", "steps"])
def test_later_model_is_no_reference(tmp_path, lost):
    path = tmp_path / "reference.npz"
    Run(path, "other" if lost == "digest" else "d").fill(STEPS[:2] if lost == "steps" else STEPS)
    if lost == "file":
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RefusedError, match=r"Restore reference\.npz|are gone"):
        Run(path).fill(may_compute=False)


def test_file_of_an_earlier_release_has_no_pairs(tmp_path):
    values = Run(None).fill()
    np.savez(tmp_path / "reference.npz", logps=np.float32(values[0])[:, None], digest=np.array("d"))
    run = Run(tmp_path / "reference.npz")
    assert run.fill() == values
    assert run.events == [len(values[1])]
