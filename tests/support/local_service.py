"""The local scheduler in a process of its own, which tests can kill.

`submit <state folder> <plan>`: prints `now`, submits, prints the outcome, and waits.
`observe <state folder> <file>`: prints `now`, and observes continuously until the file exists, and once more.
"""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from service.as_owner.accounts import Accounts
from service.as_owner.calls import HELPER, OwnerCalls
from service.scheduler.base import LaunchPlan
from service.scheduler.local.scheduler import LocalScheduler

ROOT = Path(__file__).parents[2]


def start(verb: str, state: Path, argument: LaunchPlan | Path) -> "subprocess.Popen[bytes]":
    """Start a process and return when it has printed `now`."""
    if isinstance(argument, LaunchPlan):
        fields = argument.__dict__ | {"folder": str(argument.folder), "environment": dict(argument.environment)}
        text = json.dumps(fields)
    else:
        text = str(argument)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.local_service", verb, str(state), text],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    return process


def _main(verb: str, state: str, argument: str) -> None:
    fields = json.loads(argument) if verb == "submit" else {}
    uid = fields.get("uid")
    owners = OwnerCalls(Accounts(1000), Path(fields["python"]).with_name(HELPER)) if uid is not None else None
    scheduler = LocalScheduler(
        Path(state), 2, lambda: datetime.now(UTC), owners=owners, target="tests.support.jobs:wait"
    )
    print("now", flush=True)
    if verb == "observe":
        done = False
        while not done:
            done = Path(argument).exists()
            scheduler.observe([])
    else:
        fields["folder"] = Path(fields["folder"])
        print(scheduler.submit(LaunchPlan(**fields)), flush=True)
        time.sleep(60)


if __name__ == "__main__":
    _main(*sys.argv[1:])
