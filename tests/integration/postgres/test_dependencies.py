"""Dependencies and deletions at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from service.core.errors import InvalidSpecError
from service.db.models import Job
from service.jobs.dependencies import DependencyRepository
from tests.support.wait import wait_until
from tests.support.world import World

LOCKED = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.mark.databases("postgres", only=True)
def test_a_job_cannot_name_one_that_is_being_deleted(world: World) -> None:
    job = world.submit()

    def require() -> None:
        with world.database.write() as session:
            DependencyRepository(session).require([job])

    def waits() -> bool:
        with world.database.read() as session:
            return bool(session.scalar(LOCKED))

    with ThreadPoolExecutor(1) as pool:
        with world.database.write() as session:
            session.execute(sa.update(Job).where(Job.id == job).values(deletion_requested_at=world.clock()))
            result = pool.submit(require)
            wait_until(waits, 20, "the check to wait for the deletion")
        with pytest.raises(InvalidSpecError, match=f"there is no job '{job}'"):
            result.result()
