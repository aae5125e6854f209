"""Postgres' volume is lost while a job runs: what docker/README.md says brings everything back."""

import re
from pathlib import Path

import pytest

from tests.compose.runs import CODE, LongRun, count_spec
from tests.support.compose_stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

README = Path(__file__).parents[2] / "docker" / "README.md"


def commands() -> tuple[list[str], list[str]]:
    """Those that back up and those that restore, as they stand there."""
    section = README.read_text().split("## Backup and restore\n")[1].split("\n## ")[0]
    backup, restore = (block.strip() for block in re.findall(r"(?:^    .*\n)+", section, re.MULTILINE))
    return [line.strip() for line in backup.splitlines()], [line.strip() for line in restore.splitlines()]


def test_a_lost_database_and_a_lost_run_directory_are_restored(stack: Stack) -> None:
    backup, restore = commands()
    with stack.client() as client:
        over = client.submit(count_spec("restored"), code=CODE).id
        assert client.wait(over, timeout=240).status == "succeeded"
    run = LongRun(stack, "restored")
    for command in backup:
        stack.shell(command)
    run.goes_on()
    stack.execute("reconciler", "rm", "-r", f"/shared/runs/{over}")
    stack.compose("rm", "--stop", "--force", "postgres")
    stack.engine.run("docker", "volume", "rm", f"{stack.name}_postgres")
    for command in restore:
        stack.shell(command)
    stack.execute("reconciler", "ls", f"/shared/runs/{over}/spec.json")
    run.goes_on()
    run.finish()
    with stack.client() as client:
        assert client.job(over).status == "succeeded"
