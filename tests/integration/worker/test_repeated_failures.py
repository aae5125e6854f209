"""A program that fails twice in the same way is not executed a third time."""

import pytest

from tests.integration.worker.harness import FakeService, Run, finish_of, store_code

PROGRAM = """
import sys
from trainyard.script import checkpoint_dir, report

starts = checkpoint_dir() / "starts"
count = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (count + 1))
if sys.argv[1] == "further":
    report(count + 1, {"loss": 1.0})
if sys.argv[1] == "different":
    print("ends", "abc"[count])
else:
    print("start", count)
sys.exit(3)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that makes a run of the program with many restarts."""
    code = store_code(tmp_path, PROGRAM)

    def made(service, mode, restarts):
        document = {"task": "script", "argv": ["train.py", mode], "code": code, "gpus": 1}
        return Run(tmp_path / "job", service.url, document, template="script_line", max_restarts=restarts)

    return made


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize(
    ("mode", "starts", "final"),
    [
        ("same", 2, True),
        pytest.param("different", 3, False, marks=pytest.mark.heavy),
        pytest.param("further", 3, False, marks=pytest.mark.heavy),
    ],
)
def test_restarts_end_when_the_failure_repeats(run, mode, starts, final):
    with FakeService() as service:
        attempt = run(service, mode, 2).run()
    record = finish_of(attempt, starts)
    assert record.failure is not None
    assert (record.failure.final, record.failure.exit_code, record.restarts) == (final, 3, starts - 1)
    assert ("failed twice in the same way" in (record.failure.hint or "")) is final


@pytest.mark.heavy
def test_failure_of_the_attempt_before_is_compared(run):
    with FakeService() as service:
        job = run(service, "same", 0)
        first = job.run()
        second = job.run(2)
    assert [finish_of(first, 1).failure.final, finish_of(second, 11).failure.final] == [False, True]
