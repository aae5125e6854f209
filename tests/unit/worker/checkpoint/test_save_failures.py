"""Which failed checkpoints become events."""

import errno

from worker.checkpoint.save_failures import SaveFailures
from worker.checkpoint.storage import CheckpointFilesError

NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "/runs/step-1")


def wrapped(error: OSError) -> CheckpointFilesError:
    try:
        raise CheckpointFilesError(f"rank 0: {error}") from error
    except CheckpointFilesError as raised:
        return raised


def test_each_cause_is_reported_once_an_hour() -> None:
    now = [0.0]
    failures = SaveFailures(now=lambda: now[0])
    reported = []
    for step in range(1, 181):
        now[0] += 60.0
        if message := failures.add(step, wrapped(OSError(errno.ENOSPC, "No space left on device", f"/step-{step}"))):
            reported.append((step, message))
    assert [step for step, _ in reported] == [1, 61, 121]
    assert reported[0][1].startswith("the checkpoint of step 1 could not be written: rank 0: [Errno 28] No space left")
    assert "(59 more since the last such event)" in reported[1][1]


def test_another_cause_is_reported_at_once() -> None:
    failures = SaveFailures(now=lambda: 0.0)
    assert failures.add(1, NO_SPACE)
    assert failures.add(2, OSError(errno.EROFS, "Read-only file system"))
    assert failures.add(3, FileExistsError(errno.EEXIST, "File exists"))


def test_a_cause_that_returns_after_a_success_is_reported_again() -> None:
    failures = SaveFailures(now=lambda: 0.0)
    assert [bool(failures.add(step, NO_SPACE)) for step in (1, 2)] == [True, False]
    failures.reset()
    assert failures.add(3, NO_SPACE)
