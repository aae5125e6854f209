"""A run ends after as many evaluations without an improvement as its patience."""

import math

import pytest

from trainyard.contract.spec import sections
from worker.core.errors import RefusedError
from worker.engine.callbacks.early_stopping import EarlyStopping


class Events:
    def __init__(self):
        self.sent = []

    def event(self, type_, message, *, level="info", data=None):
        self.sent.append((type_, message, data))


def stopping(reporter=None, **options):
    return EarlyStopping(sections.EarlyStopping(patience=2, **options), reporter or Events(), total_steps=100)


def evaluated(callback, values, metric="eval/loss"):
    """Return the steps of the evaluations, ten steps apart, up to the one that ends the run."""
    steps = []
    for number, value in enumerate(values, start=1):
        callback.on_evaluation(10 * number, {"eval/other": 0.0, metric: value})
        steps.append(10 * number)
        if callback.reached:
            break
    return steps


class TestVerdict:
    @pytest.mark.parametrize(
        ("values", "last", "best"),
        [
            ([3.0, 2.0, 1.0, 0.5], 40, 40),
            ([3.0, 2.0, 2.0, 2.5, 1.0], 40, 20),
            ([3.0, 4.0, 2.0, 4.0, 4.0, 1.0], 50, 30),
            ([3.0, math.nan, math.nan, 1.0], 30, 10),
            ([math.nan, 3.0, 4.0, 5.0, 1.0], 40, 20),
            ([math.inf, 3.0, math.inf, 2.0], 40, 40),
        ],
    )
    def test_smaller_is_better(self, values, last, best):
        callback = stopping()
        assert evaluated(callback, values)[-1] == last
        assert callback.best_step == best

    def test_larger_is_better(self):
        callback = stopping(metric="eval/accuracy", mode="max")
        assert evaluated(callback, [0.1, 0.5, 0.5, 0.4, 0.9], "eval/accuracy") == [10, 20, 30, 40]
        assert callback.best_step == 20

    def test_small_improvements_do_not_count(self):
        callback = stopping(min_delta=0.5)
        assert evaluated(callback, [3.0, 2.75, 2.5, 1.0]) == [10, 20, 30]
        assert callback.best_step == 10

    def test_unknown_metric_is_refused_with_those_that_exist(self):
        with pytest.raises(RefusedError, match="has no metric `eval/f1`") as refused:
            stopping(metric="eval/f1").on_evaluation(10, {"eval/loss": 1.0, "eval/bleu": 2.0})
        assert refused.value.hint == "It has: eval/loss, eval/bleu."


def test_restored_state_continues_the_count():
    before, after = stopping(), stopping()
    evaluated(before, [2.0, 3.0])
    after.restore(before.state())
    assert not after.reached
    after.on_evaluation(30, {"eval/loss": 3.0})
    assert (after.reached, after.best_step) == (True, 10)


def test_event_names_the_best_step():
    events = Events()
    callback = stopping(events)
    evaluated(callback, [2.0, 1.5, 3.0, 3.0])
    callback.on_loop_end(40)
    assert events.sent == [
        (
            "stopped_early",
            "stopped at step 40 of 100: eval/loss has not improved in 2 evaluations; the best is 1.5 at step 20",
            {"step": 40, "metric": "eval/loss", "best_step": 20, "best_value": 1.5},
        )
    ]


@pytest.mark.parametrize(("values", "step"), [([2.0, 3.0], 20), ([2.0, 3.0, 3.0], 100)])
def test_interrupted_and_complete_runs_have_no_event(values, step):
    events = Events()
    callback = stopping(events)
    evaluated(callback, values)
    callback.on_loop_end(step)
    assert events.sent == []
