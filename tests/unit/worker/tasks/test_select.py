"""The worker has a registration for each task of its loop."""

from trainyard.contract.kinds.tasks import LOOP_TASKS
from worker.tasks.select import BUILDERS


def test_each_task_of_the_loop_has_a_builder() -> None:
    assert set(BUILDERS) == LOOP_TASKS
