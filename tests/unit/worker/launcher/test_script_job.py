"""The exit record of a user's program."""

import json
import signal

import pytest

from trainyard.contract.layout import AttemptLayout
from worker.core.errors import read_errors
from worker.core.rank_exits import rank_exits_file
from worker.launcher.exit_record import finalize
from worker.launcher.script_job import finalize_script

TRACEBACK = """begins
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 15, in <module>
[rank1]: ValueError: enough
"""
ABORTED = "terminate called without an active exception\n"


@pytest.fixture
def ended(tmp_path):
    """Return a function that finalizes a run in which rank 1 failed with this output, and torchrun ended rank 0."""
    layout = AttemptLayout(tmp_path)
    for folder in (layout.errors, layout.logs, layout.spool):
        folder.mkdir(exist_ok=True)

    def made(output, exitcode):
        layout.rank_log(1).write_text(output)
        layout.rank_log(0).write_text("begins\n")
        ends = [
            {"rank": rank, "exitcode": code, "pid": rank + 1, "time": 5.0}
            for rank, code in ((0, -signal.SIGKILL), (1, exitcode))
        ]
        rank_exits_file(layout, 0, 1).write_text(json.dumps(ends))
        finalize_script(layout, 1, 1, None)
        return layout

    return made


@pytest.mark.parametrize(("output", "exitcode"), [(TRACEBACK, 1), (TRACEBACK + ABORTED, -signal.SIGABRT)])
def test_an_exception_before_an_abort_is_the_failure(ended, output, exitcode):
    layout = ended(output, exitcode)
    failure = finalize(layout, 1, 1, killed_for=None).failure
    assert failure is not None
    assert (failure.rank, failure.type, failure.message) == (1, "ValueError", "enough")
    assert "line 15" in (failure.traceback or "")


@pytest.mark.parametrize(
    "output",
    [
        "begins\n" + ABORTED,
        TRACEBACK + "caught; on with it\n" + ABORTED,
        TRACEBACK + "terminate called after throwing an instance of 'c10::DistBackendError'\n",
        "",
    ],
)
def test_an_abort_of_another_cause_is_reported_as_one(ended, output):
    layout = ended(output, -signal.SIGABRT)
    assert not [error for error in read_errors(layout.errors) if error.rank == 1]


def test_half_of_a_surrogate_pair_in_a_message_is_replaced(tmp_path):
    layout = AttemptLayout(tmp_path)
    for folder in (layout.errors, layout.spool):
        folder.mkdir()
    exception = {"type": "ValueError", "bases": ["ValueError"], "message": "file \udcff"}
    end = {"rank": 0, "exitcode": 1, "pid": 1, "time": 5.0, "traceback": "ValueError: file \udcff"}
    rank_exits_file(layout, 0, 1).write_text(json.dumps([end | {"hook": {"exception": exception}}]))
    finalize_script(layout, 1, 1, None)
    failure = finalize(layout, 1, 1, killed_for=None).failure
    assert failure is not None
    assert (failure.message, failure.traceback) == ("file ?", "ValueError: file ?")


def test_a_missing_module_has_a_hint(ended):
    layout = ended("Traceback (most recent call last):\nModuleNotFoundError: No module named 'wandb'\n", 1)
    failure = finalize(layout, 1, 1, killed_for=None).failure
    assert failure is not None
    assert failure.final
    assert (failure.hint or "").startswith("Install it in the Python that runs the program")
