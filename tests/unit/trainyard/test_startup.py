"""Which modules a call of `trainyard` imports, in a fresh interpreter: each command loads only what it needs."""

import json
import os
import subprocess
import sys

import pytest

from trainyard.cli.commands import COMMANDS

HEAVY = {"httpx", "pydantic", "rich", "yaml", "asyncio", "ssl", "click", "torch", "fastapi", "service", "worker"}
CLIENT = {"httpx", "pydantic"}
"""What a command that talks to the service needs."""

REPORT = """
import json, sys
from trainyard.cli import main
sys.argv[0] = "trainyard"
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """The output of this call of `trainyard`, and the modules that it has imported at its end."""
    program = [sys.executable, "-c", REPORT, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, env=os.environ | environment, check=False)
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


def commands_in(modules: set[str]) -> set[str]:
    """The modules of commands among these."""
    files = {location.partition(":")[0] for commands in COMMANDS.values() for location, _ in commands.values()}
    return {name for name in files if f"trainyard.cli.{name}" in modules}


@pytest.mark.parametrize(("option", "shown"), [("--help", "\n  submit "), ("--version", "trainyard ")])
def test_the_root_loads_no_command(option: str, shown: str) -> None:
    stdout, modules = loaded(option)
    assert shown in stdout
    assert (commands_in(modules), HEAVY & modules) == (set(), set())
    assert len(modules) < 200


def test_names_of_commands_are_completed_without_loading_them() -> None:
    typed = {"_TRAINYARD_COMPLETE": "complete_bash", "COMP_WORDS": "trainyard sweep", "COMP_CWORD": "1"}
    stdout, modules = loaded(**typed)
    assert stdout.split() == ["sweep", "sweeps", "sweep-cancel"]
    assert (commands_in(modules), HEAVY & modules) == (set(), {"pydantic"})  # Typer reads options with it.


@pytest.mark.parametrize(
    ("command", "own", "needed"),
    [
        (("serve", "--help"), {"serve"}, {"pydantic"}),  # Typer reads options with it.
        (("list", "--help"), {"job_list"}, CLIENT | {"yaml", "ssl"}),
        (("list", "--json"), {"job_list"}, CLIENT | {"yaml", "ssl"}),
        (("tokens", "list", "--help"), {"tokens"}, CLIENT | {"yaml", "ssl"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_command_loads_what_it_needs(command: tuple[str, ...], own: set[str], needed: set[str]) -> None:
    _, modules = loaded(*command, TRAINYARD_URL="http://127.0.0.1:1")
    assert (commands_in(modules), HEAVY & modules) == (own, needed)
