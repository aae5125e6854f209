"""`kill -9` of every part in the middle of one run: each comes back, nothing is lost and nothing is doubled."""

import pytest

from tests.compose.runs import LongRun, submit_insistently
from tests.support.compose_stack import Stack
from tests.support.wait import wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def run(stack: Stack) -> LongRun:
    return LongRun(stack, "under-fire")


def test_reconciler_killed_during_submissions(stack: Stack, run: LongRun) -> None:
    names = [f"{when}-{run.id}" for when in ("before", "after")]
    jobs = [submit_insistently(stack, names[0])]
    stack.kill("reconciler")
    jobs.append(submit_insistently(stack, names[1]))
    with stack.client() as client:
        assert [client.wait(job, timeout=240).status for job in jobs] == ["succeeded", "succeeded"]
    ran = [line.split()[0] for line in stack.execute("reconciler", "cat", "/shared/book").splitlines()]
    assert [ran.count(name) for name in names] == [1, 1]
    run.goes_on()


def test_each_api_replica_killed(stack: Stack, run: LongRun) -> None:
    for number in range(len(stack.containers("api"))):
        stack.kill("api", number)
        run.goes_on()


def test_database_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("postgres")
    wait_until(stack.ready, 120, "the service to be ready again")
    run.goes_on()


def test_slurm_controller_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("slurmctld")
    wait_until(lambda: len(stack.nodes()) == 2, 120, "slurmctld to answer")
    run.goes_on()
    with stack.client() as client:
        assert len(client.attempts(run.id)) == 1, "nothing so far was a reason to begin anew"


def test_node_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("c2")
    # What was not saved is trained again, from the checkpoint.
    run.goes_on(steps=20, timeout=300)
    wait_until(lambda: "down" not in " ".join(stack.nodes()) and len(stack.nodes()) == 2, 120, "the node to be back")


def test_all_jobs_are_consistent_after_the_kills(run: LongRun) -> None:
    run.finish()
