"""Loss of Postgres' volume during a job: the commands of docker/README.md restore everything."""

import re
from pathlib import Path

import pytest

from tests.compose.runs import CODE, LongRun, script_spec
from tests.support.compose_stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

README = Path(__file__).parents[2] / "docker" / "README.md"


def commands() -> tuple[list[str], list[str]]:
    """Return the backup commands and the restore commands of the documentation."""
    section = README.read_text().split("## Backup and restore\n")[1].split("\n## ")[0]
    backup, restore = (block.strip() for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE))
    return [line.strip() for line in backup.splitlines()], [line.strip() for line in restore.splitlines()]


def test_a_lost_database_and_a_lost_run_directory_are_restored(stack: Stack) -> None:
    backup, restore = commands()
    with stack.client() as client:
        ended_id = client.submit(script_spec("restored"), code=CODE).id
        assert client.wait(ended_id, timeout=240).status == "succeeded"
    run = LongRun(stack, "restored")
    for command in backup:
        stack.shell(command)
    run.wait_for_steps()
    stack.execute("reconciler", "rm", "-r", f"/shared/runs/{ended_id}")
    stack.compose("rm", "--stop", "--force", "postgres")
    stack.engine.run("docker", "volume", "rm", f"{stack.name}_postgres")
    for command in restore:
        stack.shell(command)
    stack.execute("reconciler", "ls", f"/shared/runs/{ended_id}/spec.json")
    run.wait_for_steps()
    run.finish()
    with stack.client() as client:
        assert client.job(ended_id).status == "succeeded"
