"""One tick over many jobs: commands to Slurm, CPU seconds, statements to the database and memory.

Slurm's commands are canned programs that print what squeue and sacct print; everything else is the service's own.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.db.engine import Database
from service.db.migrate import upgrade
from service.db.models import Attempt, Job
from service.dependencies import Services
from service.reconcile.handover import HandOvers
from service.reconcile.lease import LeaderLease
from service.reconcile.loop import Reconciler
from service.reconcile.prepare import Preparation
from service.reconcile.submit import Submitter
from service.scheduler.slurm import SlurmScheduler
from service.settings import Settings
from trainyard.contract.resolve import resolve
from trainyard.contract.spec import dump_spec, parse_spec
from trainyard.contract.templates import fill_template

SHARES = {"pending": 0.4, "running": 0.4, "pausing": 0.05, "cancelling": 0.05, "lost": 0.1}
"""Of the jobs that the scheduler has, in each status; nothing about them changes between two ticks."""
WORDS = "waiting for Slurm: jobs of higher priority come first (Priority)"


def main() -> int:
    """Print the figures as JSON; 0 where the targets are met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        figures = measure(Path(folder), options.jobs, options.ticks)
    print(json.dumps(figures, indent=2))
    good = figures["commands_per_tick"] <= 2 and figures["cpu_seconds"] < 2.0 and figures["statements"] < 100
    return 0 if good else 1


def measure(folder: Path, jobs: int, ticks: int) -> dict[str, Any]:
    """The median tick of several, after a first one that is not counted."""
    settings = Settings(state_dir=folder / "state", backend="slurm", accelerator="cpu")
    settings.state.mkdir(parents=True)
    upgrade(settings.url)
    database = Database(settings.url)
    listed = _fill(database, jobs)
    calls = _canned(folder / "bin", listed)
    reconciler = _reconciler(Services(settings, database, lambda: datetime.now(UTC)))
    statements: Counter[str] = Counter()
    for engine in {database._reader, database._writer}:
        sa.event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.update([sql.split()[0]]))
    reconciler.run_once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [_tick(reconciler, statements, calls) for _ in range(ticks)]
    rows.sort(key=lambda row: row["cpu_seconds"])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    database.dispose()
    return {"jobs": jobs, "ticks": ticks, **rows[len(rows) // 2], "memory_grown_mb": round(grown / 1024, 1)}


def _tick(reconciler: Reconciler, statements: Counter[str], calls: Path) -> dict[str, Any]:
    statements.clear()
    calls.write_text("")
    cpu, wall = time.process_time(), time.monotonic()
    reconciler.run_once()
    return {
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "wall_seconds": round(time.monotonic() - wall, 3),
        "commands_per_tick": len(calls.read_text().split()),
        "statements": sum(statements.values()),
        "changed": reconciler.changed,
    }


def _reconciler(services: Services) -> Reconciler:
    scheduler = SlurmScheduler(poll_seconds=0)
    lease = LeaderLease(services.database, "bench")
    submitter = Submitter(services, scheduler, lease, Preparation(services, slurm=True), HandOvers(threads=4))
    return Reconciler(services, scheduler, submitter, lease)


def _fill(database: Database, count: int) -> list[tuple[str, str, str]]:
    """Jobs and their attempts; what squeue is to say of them: id, state and name."""
    template = parse_spec(fill_template("digits_ddp", {"gpus": 2}))
    now, listed = datetime.now(UTC), []
    spec = dump_spec(resolve(template, Settings(backend="slurm", accelerator="cpu").site))
    statuses = [status for status, share in SHARES.items() for _ in range(round(count * share))][:count]
    jobs, attempts = [], []
    for no, status in enumerate(statuses, 1):
        attempt, tag = f"{no:016x}", f"ty-main-{no:016x}"
        common = {
            "created_at": now,
            "updated_at": now,
            "created_by": "bench",
            "labels": {},
            "latest": {"train/loss": 1.0},
        }
        wish = {"cancelling": "cancelled", "pausing": "paused"}.get(status, "run")
        message = WORDS if status == "pending" else "as before"
        jobs.append(
            {"no": no, "id": f"job_{no:026d}", "name": "bench", "status": status, "status_message": message}
            | {"desired": wish, "spec": spec, "attempts": 1, "attempt_id": attempt, **common}
        )
        attempts.append(
            {"id": attempt, "job_no": no, "number": 1, "tag": tag, "scheduler": "slurm", "scheduler_id": str(no)}
            | {"token_hash": "", "execution": 1, "max_restarts": 0, "created_at": now, "nodes": []}
            | {"claimed_at": None if status == "pending" else now, "excluded_nodes": []}
        )
        if status != "lost":
            listed.append((str(no), "PENDING" if status == "pending" else "RUNNING", tag))
    with database.write() as session:
        session.execute(sa.insert(Job), jobs)
        session.execute(sa.insert(Attempt), attempts)
    return listed


def _canned(folder: Path, listed: list[tuple[str, str, str]]) -> Path:
    """Programs in the place of Slurm's, which note each call; the file of calls."""
    folder.mkdir()
    calls, answer = folder / "calls", folder / "answer"
    answer.write_text("".join(f"{number}|{state}|Priority|node1|{tag}\n" for number, state, tag in listed))
    bodies = {"squeue": f"cat {answer}", "sacct": "true", "scancel": "true", "sbatch": "false"}
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {calls}\n{body}\n")
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return calls


if __name__ == "__main__":
    sys.exit(main())
