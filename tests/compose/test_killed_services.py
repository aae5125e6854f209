"""`kill -9` of each part during a run: it is restarted, and nothing is lost or duplicated."""

import pytest

from tests.compose.runs import LongRun, submit_with_retries
from tests.support.compose_stack import Stack
from tests.support.wait import wait_until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def run(stack: Stack) -> LongRun:
    return LongRun(stack, "under-fire")


def test_reconciler_killed_during_submissions(stack: Stack, run: LongRun) -> None:
    names = [f"{when}-{run.id}" for when in ("before", "after")]
    jobs = [submit_with_retries(stack, names[0])]
    stack.kill("reconciler")
    jobs.append(submit_with_retries(stack, names[1]))
    with stack.client() as client:
        assert [client.wait(job, timeout=240).status for job in jobs] == ["succeeded", "succeeded"]
    ran = [line.split()[0] for line in stack.execute("reconciler", "cat", "/shared/book").splitlines()]
    assert [ran.count(name) for name in names] == [1, 1]
    run.wait_for_steps()


def test_each_api_replica_killed(stack: Stack, run: LongRun) -> None:
    for number in range(len(stack.containers("api"))):
        stack.kill("api", number)
        run.wait_for_steps()


def test_database_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("postgres")
    wait_until(stack.ready, 120, "the service to be ready again")
    run.wait_for_steps()


def test_slurm_controller_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("slurmctld")
    wait_until(lambda: len(stack.nodes()) == 2, 120, "slurmctld to answer")
    run.wait_for_steps()
    with stack.client() as client:
        assert len(client.attempts(run.id)) == 1, "nothing so far was a reason to begin anew"


def test_node_killed(stack: Stack, run: LongRun) -> None:
    stack.kill("c2")
    # Steps after the last checkpoint are repeated.
    run.wait_for_steps(steps=20, timeout=300)
    wait_until(lambda: "down" not in " ".join(stack.nodes()) and len(stack.nodes()) == 2, 120, "the node to be back")


def test_all_jobs_are_consistent_after_the_kills(run: LongRun) -> None:
    run.finish()
