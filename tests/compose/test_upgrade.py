"""An upgrade during a job: migrate, then restart the services; the job is not affected."""

import pytest

from service.db.migrate import head
from tests.compose.runs import LongRun
from tests.support.compose_stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

PREVIOUS = """
from alembic import command
from service.db.migrate import alembic_config, current
from service.core.settings import Settings
url = Settings().url
command.downgrade(alembic_config(url), "-1")
print(current(url))
"""


def test_upgrade_from_the_previous_migration(stack: Stack) -> None:
    run = LongRun(stack, "upgraded")
    stack.compose("stop", "api")
    before = stack.execute("reconciler", "python", "-c", PREVIOUS).split()[-1]
    assert before != head()
    stack.compose("stop", "reconciler")
    # A replica that starts before the migration exits and is restarted until the schema is current.
    with pytest.raises(RuntimeError, match=f"the database is at schema {before} but this release needs {head()}"):
        stack.compose("run", "--rm", "--no-deps", "--name", f"{stack.name}-early", "-T", "api")
    stack.compose("run", "--rm", "--no-deps", "migrate")
    stack.compose("start", "reconciler", "api")
    run.wait_for_steps(timeout=240)
    run.finish()
