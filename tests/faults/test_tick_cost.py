"""Slurm commands, CPU seconds and database statements of one tick over many jobs.

Programs with fixed output replace Slurm's commands; everything else is the service's own code. `scancel` is not
counted: it is called at most once a minute for each job that has to end. Nor are `scontrol` and `sacctmgr`, whose
answers are cached for ten minutes.
"""

import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from service.api.dependencies import AppState
from service.auth.principals import Principal
from service.core.settings import Settings
from service.db.engine import Database
from service.db.migrate import upgrade
from service.db.models import Attempt, Job
from service.jobs.repository import JobRepository
from service.jobs.submission import new_job
from service.main import make_loop
from service.plugins.installed import PLUGINS
from service.reconciler.reconciler import Reconciler
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.web.app import create_app
from tests.support.cpu_limit import slowdown
from tests.support.slurm_programs import install_programs
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.templates import fill_template
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

STATUS_SHARES = {
    "pending": 0.3,
    "running": 0.3,
    "pausing": 0.05,
    "paused": 0.05,
    "cancelling": 0.05,
    "lost": 0.05,
    "succeeded": 0.1,
    "failed": 0.05,
    "cancelled": 0.05,
}
"""The fraction of jobs in each lasting status; none of them changes between two ticks."""
PENDING_REASONS = (
    "Priority",
    "Resources",
    "JobHeldUser",
    "QOSMaxGRESPerUser",
    "ReqNodeNotAvail, UnavailableNodes:node7",
)
LIVE_STATES = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING")
OTHER_JOBS = 5_000
"""Pending jobs of other accounts, ahead of ours."""
NODES = 1_000
NOW = datetime.now(UTC)
USER = Principal("user", "tok_1", "bench", "user")
MAX_SECONDS = 2.0
"""Processor time of a tick over ten thousand jobs on a machine for which the limits of tests hold."""
UNCOUNTED = ("scancel", "scontrol", "sacctmgr")


def test_a_tick_over_a_hundred_jobs_changes_none(tmp_path: Path) -> None:
    with patch.dict(os.environ):
        result = measure(tmp_path, jobs=100, ticks=1)
    assert not result["changed"]
    assert result["statements"] < 30
    assert result["max_commands_per_tick"] <= 3


def test_three_hundred_jobs_that_wait_for_others_cost_one_query(tmp_path: Path) -> None:
    with patch.dict(os.environ):
        result = measure(tmp_path, jobs=20, ticks=1, dependents=300)
    assert not result["changed"]
    assert result["statements"] < 30


@pytest.mark.fault_scenario(31)
@pytest.mark.slow
def test_31_a_tick_over_ten_thousand_jobs_stays_within_its_bounds(tmp_path: Path) -> None:
    with patch.dict(os.environ):
        result = measure(tmp_path, jobs=10_000, ticks=3)
    assert result["commands_per_tick"] <= 2
    assert result["max_commands_per_tick"] <= 3
    seconds = result["cpu_seconds"]
    assert seconds < MAX_SECONDS or seconds < MAX_SECONDS * slowdown()
    assert result["statements"] < 100


def measure(folder: Path, jobs: int, ticks: int, dependents: int = 0) -> dict[str, Any]:
    """Return the figures of the tick with the median CPU time, after two ticks that are not counted."""
    settings = Settings(state_dir=folder / "state", backend="slurm", accelerator="cpu")
    settings.state.mkdir(parents=True)
    upgrade(settings.url)
    database = Database(settings.url)
    squeue_lines = _insert_jobs(database, jobs)
    _insert_dependents(database, dependents)
    others = [f"{900_000 + n}|PENDING|N/A|N/A|gpu|{10**6 + n}|1||Priority|/tmp|x" for n in range(OTHER_JOBS)]
    call_log = install_programs(folder / "bin", [*squeue_lines, *others], nodes=NODES)
    app_state = AppState(settings, database, lambda: datetime.now(UTC))
    create_app(app_state, PLUGINS)
    reconciler = make_loop(app_state, SlurmScheduler(poll_seconds=0), PLUGINS).reconciler
    statements: Counter[str] = Counter()
    for engine in {database._reader, database._writer}:
        sa.event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.update([sql.split()[0]]))
    # The first ticks store the cluster snapshot and the status message of each job.
    first = [_tick(reconciler, statements, call_log) for _ in range(2)]
    rows = [_tick(reconciler, statements, call_log) for _ in range(ticks)]
    rows.sort(key=lambda row: row["cpu_seconds"])
    database.dispose()
    commands = [row["commands_per_tick"] for row in [*first, *rows]]
    bounds = {"commands_per_tick": min(commands), "max_commands_per_tick": max(commands)}
    return {**rows[len(rows) // 2], **bounds}


def _insert_dependents(database: Database, count: int) -> None:
    """Insert queued jobs that wait for the first two jobs."""
    with database.write() as session:
        first, second = session.scalars(sa.select(Job).order_by(Job.pk).limit(2))
        jobs = [new_job(parse_spec({**first.spec, "after": [first.id, second.id]}), USER, NOW) for _ in range(count)]
        JobRepository(session, NOW).add(*jobs)


def _tick(reconciler: Reconciler, statements: Counter[str], call_log: Path) -> dict[str, Any]:
    statements.clear()
    call_log.write_text("")
    cpu = time.process_time()
    reconciler.run_once()
    return {
        "cpu_seconds": time.process_time() - cpu,
        "commands_per_tick": sum(name not in UNCOUNTED for name in call_log.read_text().split()),
        "statements": sum(statements.values()),
        "changed": reconciler.changed,
    }


def _insert_jobs(database: Database, count: int) -> list[str]:
    """Insert jobs and attempts; returns the lines that squeue prints for them."""
    template = parse_spec(fill_template("digits_ddp", {"gpus": 2}))
    now, squeue_lines = datetime.now(UTC), []
    spec = dump_spec(resolve(template, Settings(backend="slurm", accelerator="cpu").site))
    statuses = [status for status, share in STATUS_SHARES.items() for _ in range(round(count * share))][:count]
    jobs, attempts = [], []
    for pk, status in enumerate(statuses, 1):
        attempt, tag = f"{pk:016x}", f"ty-main-{pk:016x}"
        common = {
            "created_at": now,
            "updated_at": now,
            "created_by": "bench",
            "labels": {},
            "latest": {"train/loss": 1.0},
        }
        desired = {"cancelling": "cancelled", "pausing": "paused", "paused": "paused"}.get(status, "run")
        jobs.append(
            {"pk": pk, "id": f"job_{pk:026d}", "name": "bench", "status": status, "status_message": "as before"}
            | {"desired": desired, "spec": spec, "attempts": 1, "attempt_id": attempt, **common}
        )
        attempts.append(
            {"id": attempt, "job_pk": pk, "number": 1, "tag": tag, "scheduler": "slurm", "scheduler_id": str(pk)}
            | {"token_hash": "", "execution": 1, "max_restarts": 0, "created_at": now, "nodes": []}
            | {"claimed_at": None if status == "pending" else now, "excluded_nodes": []}
        )
        if status in ("pending", "running", "pausing", "cancelling"):
            pending = status == "pending"
            state = "PENDING" if pending else LIVE_STATES[pk % len(LIVE_STATES)]
            reason = PENDING_REASONS[pk % len(PENDING_REASONS)] if pending else "None"
            squeue_lines.append(
                f"{pk}|{state}|2099-01-01T00:00:00|2099-01-02T00:00:00|gpu|{pk}|{os.getuid()}||{reason}|/runs/{tag}|{tag}"
            )
    with database.write() as session:
        session.execute(sa.insert(Job), jobs)
        session.execute(sa.insert(Attempt), attempts)
    return squeue_lines
