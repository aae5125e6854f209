"""`python -m service serve | migrate`: the only place where settings are read and parts are made."""

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import structlog
import uvicorn
from pydantic import ValidationError

from service.access.actions import ensure_admin_token
from service.app import create_app
from service.clock import utc_now
from service.db.engine import Database
from service.db.migrate import upgrade
from service.dependencies import Services
from service.errors import ServiceError
from service.observability import ServiceMetrics, configure_logging
from service.reconcile.lease import LeaderLease
from service.reconcile.loop import ReconcileLoop, Reconciler, new_owner
from service.reconcile.submit import Submitter
from service.scheduler.base import Scheduler
from service.scheduler.local import LocalScheduler
from service.scheduler.local_policy import visible_gpus
from service.scheduler.slurm import SlurmScheduler
from service.scheduler.slurm_plan import SlurmSite, batch_script, is_plain_path
from service.settings import Settings


class StartError(Exception):
    """The service cannot start; the message says what to change."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Trainyard's service.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="run the API and the reconciler")
    commands.add_parser("migrate", help="bring the database to this release's schema")
    command = parser.parse_args(argv).command
    try:
        settings = Settings()
        configure_logging(settings.log_format)
        return {"serve": serve, "migrate": migrate}[command](settings)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            print(f"TRAINYARD_{name}: {problem['msg']}", file=sys.stderr)
        return 2
    except (ServiceError, StartError, OSError) as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1


def migrate(settings: Settings) -> int:
    """Apply the migrations that are missing."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    upgrade(settings.url)
    return 0


def serve(settings: Settings) -> int:
    """API and reconciler in one process, until a signal."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings.runs.mkdir(parents=True, exist_ok=True)
    with _only_one(settings.state / "lock"):
        upgrade(settings.url)
        database = Database(settings.url)
        services = Services(settings=settings, database=database, clock=utc_now)
        ensure_admin_token(database, settings.state / "admin_token", utc_now())
        metrics = ServiceMetrics()
        loop = make_loop(services, make_scheduler(settings), metrics)
        services.hint = loop.hint
        config = uvicorn.Config(
            create_app(services, metrics),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=64 * 1024,
        )
        _run(config, settings, before=loop.start, after=loop.stop)
        LeaderLease(database, "").release(utc_now())
        database.dispose()
    return 0


def make_scheduler(settings: Settings) -> Scheduler:
    """The adapter for the configured backend.

    Raises:
        StartError: this machine cannot reach a scheduler of that kind.
    """
    if settings.backend == "slurm":
        missing = [name for name in ("sbatch", "srun", "squeue", "sacct", "scancel") if shutil.which(name) is None]
        if missing:
            raise StartError(f"TRAINYARD_BACKEND=slurm needs Slurm's commands; not on the PATH: {', '.join(missing)}")
        if not is_plain_path(settings.runs):
            raise StartError(f"TRAINYARD_RUNS_DIR={settings.runs}: on Slurm only letters, digits and _./+@=,- in it")
        return SlurmScheduler(poll_seconds=settings.slurm_poll_seconds)
    gpus = visible_gpus(os.environ, os.listdir("/dev")) if settings.site.accelerator == "cuda" else ()
    return LocalScheduler(settings.state, settings.local_slots, utc_now, gpus=gpus)


def make_loop(services: Services, scheduler: Scheduler, metrics: ServiceMetrics) -> ReconcileLoop:
    """The reconciler on the given parts."""
    batch = partial(batch_script, _slurm_site(services.settings)) if scheduler.name == "slurm" else None
    submitter = Submitter(services, scheduler, search_path=_source_tree(), batch_script=batch)
    lease = LeaderLease(services.database, new_owner())
    reconciler = Reconciler(services, scheduler, submitter, lease)
    return ReconcileLoop(reconciler, metrics, services.settings.tick_seconds)


def _slurm_site(settings: Settings) -> SlurmSite:
    return SlurmSite(accelerator=settings.site.accelerator)


def _source_tree() -> tuple[Path, ...]:
    """Where workers find our packages when they run from a source tree that is not installed."""
    root = Path(__file__).resolve().parent.parent
    return (root,) if str(root) in os.environ.get("PYTHONPATH", "").split(os.pathsep) else ()


def _run(config: uvicorn.Config, settings: Settings, *, before: Callable[[], None], after: Callable[[], None]) -> None:
    server = uvicorn.Server(config)
    before()
    structlog.get_logger("service").info(
        "serving",
        url=settings.service_url,
        backend=settings.backend,
        runs=str(settings.runs),
        state=str(settings.state),
    )
    try:
        server.run()
    finally:
        after()
    if not server.started:
        raise StartError(
            f"cannot listen on {settings.host}:{settings.port}; is another service there? set TRAINYARD_PORT"
        )


@contextmanager
def _only_one(path: Path) -> Iterator[IO[str]]:
    """One service a state folder: two reconcilers on one local queue or one SQLite file would step on each other."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartError(f"another service uses {path.parent}; stop it, or set TRAINYARD_STATE_DIR") from None
        yield file


if __name__ == "__main__":
    sys.exit(main())
