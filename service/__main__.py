"""`python -m service serve | migrate`: the only place where settings are read and parts are made."""

import argparse
import fcntl
import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Protocol

import structlog
import uvicorn
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from service.api.app import create_app
from service.api.connection_limits import protocol
from service.api.dependencies import Services
from service.auth.principals import ensure_admin_token, register_admin_token
from service.core.clock import utc_now
from service.core.errors import ServiceError
from service.core.observability import configure_logging
from service.core.periodic_task import PeriodicTask
from service.core.private_files import restrict_permissions
from service.core.settings import Settings, misspelled_variables
from service.db.engine import Database
from service.db.leader_lease import LeaderLease, lease_owner
from service.db.migrate import current, head, upgrade
from service.diagnostics.checks import examine, examine_slurm
from service.maintenance import task as keeper
from service.metrics.retention import cutoff, trim
from service.reconciler.poll_loop import ChangeWatcher, ReconcileLoop
from service.reconciler.reconciler import Reconciler
from service.reconciler.submission.pool import HandOvers
from service.reconciler.submission.prepare import Preparation
from service.reconciler.submission.submitter import Submitter
from service.scheduler.base import Scheduler
from service.scheduler.launch_document import source_tree
from service.scheduler.local.policy import visible_gpus
from service.scheduler.local.scheduler import LocalScheduler
from service.scheduler.slurm.batch_script import batch_script, is_plain_path
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.webhooks import dispatcher as webhooks
from service.webhooks.sender import Sender
from trainyard.contract.layout import write_atomic
from trainyard.contract.local_paths import admin_token_file, service_url_file

_SUBMISSIONS_AT_ONCE = max(2, min(4, os.cpu_count() or 1))
"""Each is an interpreter that starts: more of them than cores only take turns with the requests."""
_SWITCH_SECONDS = 0.0005
_NEW_OBJECTS = 10_000
"""Between two looks for garbage; by default 700, fewer than one tick makes."""


class StartError(Exception):
    """The service cannot start; the message says what to change."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Trainyard's service.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="run the API and, unless TRAINYARD_RECONCILE is false, the reconciler")
    commands.add_parser("migrate", help="bring the database to this release's schema")
    looks = commands.add_parser("doctor", help="look at the installation, one JSON object a line")
    looks.add_argument(
        "--scheduler", action="store_true", help="ask Slurm alone, which the service does not when asked"
    )
    asked = parser.parse_args(argv)
    try:
        settings = Settings()
        configure_logging(settings.log_format)
        for name, meant in misspelled_variables(os.environ):
            structlog.get_logger("service").warning(f"{name} is no setting, and does nothing; did you mean {meant}?")
        if asked.command == "doctor":
            return doctor(settings, scheduler_alone=asked.scheduler)
        return {"serve": serve, "migrate": migrate}[asked.command](settings)
    except ValidationError as error:
        for problem in error.errors():
            name = str(problem["loc"][0] if problem["loc"] else "").upper()
            print(f"TRAINYARD_{name}: {problem['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"trainyard: the database cannot be used: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except (ServiceError, StartError, OSError) as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1


def migrate(settings: Settings) -> int:
    """Apply the migrations that are missing."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    restrict_permissions(settings.state, settings.url)
    upgrade(settings.url)
    return 0


def doctor(settings: Settings, *, scheduler_alone: bool = False) -> int:
    """Say what is found; 1 when something is wrong."""
    wrong = False
    for finding in examine_slurm(settings) if scheduler_alone else examine(settings):
        wrong |= finding.state == "error"
        print(finding.model_dump_json(), flush=True)
    return int(wrong)


def serve(settings: Settings) -> int:
    """API and reconciler in one process, or the API alone, until a signal."""
    # A request passes between threads several times, and each time may wait so long for a tick that computes.
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    restrict_permissions(settings.state, settings.url)
    settings.runs.mkdir(parents=True, exist_ok=True)
    with _only_one(settings.state / "lock"):
        _ready_schema(settings)
        database = Database(settings.url)
        services = Services(settings=settings, database=database, clock=utc_now)
        _admin_token(services)
        parts = _reconciling(services) if settings.reconcile else []
        config = uvicorn.Config(
            create_app(services),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=protocol(settings.max_connections),
            ws="none",
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=64 * 1024,
        )
        _spare_the_collector()
        try:
            _run(config, services, parts)
        finally:
            database.dispose()
    return 0


def _ready_schema(settings: Settings) -> None:
    """A replica of the API never migrates: who begins an upgrade says when.

    Raises:
        StartError: the schema is another release's.
    """
    if settings.reconcile:
        upgrade(settings.url)
    elif (found := current(settings.url)) != head():
        raise StartError(
            f"the database is at {found or 'no schema'}, this release wants {head()}: run python -m service migrate"
        )


def _admin_token(services: Services) -> None:
    given = services.settings.admin_token_file
    if given is not None:
        register_admin_token(services.database, given, services.clock())
    else:
        ensure_admin_token(services.database, admin_token_file(services.state), services.clock())


class _Part(Protocol):
    """What runs beside the API, in threads of its own."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def _reconciling(services: Services) -> list[_Part]:
    """What only the service that holds the lease does, in the order in which it starts."""
    loop = make_loop(services, make_scheduler(services))
    services.notify_reconciler = loop.hint
    housekeeper = keeper.MaintenanceTask(services, loop.lease)
    housekeeping = PeriodicTask("housekeeping", housekeeper.run_once, keeper.SECONDS)
    services.notify_cleanup = housekeeping.hint
    sender = Sender(services.settings.webhook_allowed_hosts, services.resolver)
    messages = webhooks.WebhookDispatcher(services, loop.lease, sender)
    post = PeriodicTask("webhooks", lambda: messages.run_once() > 0, webhooks.SECONDS)
    services.notify_webhooks = post.hint
    parts: list[_Part] = [loop, housekeeping, post]
    if services.database.dialect == "postgresql":
        watcher = ChangeWatcher(services.database, loop.hint)
        parts.append(PeriodicTask("change-watcher", watcher.run_once, ChangeWatcher.SECONDS))
    return parts


def _spare_the_collector() -> None:
    """What is loaded by now stays: looking through all of it again stopped every thread for 0.2 seconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)


def make_scheduler(services: Services) -> Scheduler:
    """The adapter for the configured backend.

    Raises:
        StartError: this machine cannot reach a scheduler of that kind.
    """
    settings = services.settings
    if settings.backend == "slurm":
        missing = [
            name for name in ("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo") if shutil.which(name) is None
        ]
        if missing:
            raise StartError(f"TRAINYARD_BACKEND=slurm needs Slurm's commands; not on the PATH: {', '.join(missing)}")
        if not is_plain_path(settings.runs):
            raise StartError(f"TRAINYARD_RUNS_DIR={settings.runs}: on Slurm only letters, digits and _./+@=,- in it")
        return SlurmScheduler(
            poll_seconds=settings.slurm_poll_seconds,
            submit_seconds=settings.slurm_submit_seconds,
            count=services.metrics.command,
        )
    gpus = visible_gpus(os.environ, os.listdir("/dev")) if settings.known_accelerator == "cuda" else ()
    return LocalScheduler(settings.state, settings.local_slots, utc_now, gpus=gpus)


def make_loop(services: Services, scheduler: Scheduler) -> ReconcileLoop:
    """The reconciler on the given parts."""
    slurm, settings = scheduler.name == "slurm", services.settings
    batch = partial(batch_script, extra=settings.slurm_extra_options) if slurm else None
    lease = LeaderLease(services.database, lease_owner(services.state))
    preparation = Preparation(services, slurm=slurm, search_path=source_tree(), batch_script=batch)
    # The local queue answers at once; sbatch may hang for minutes.
    hand_overs = HandOvers(threads=_SUBMISSIONS_AT_ONCE if slurm else 0)
    submitter = Submitter(services, scheduler, lease, preparation, hand_overs)
    slowest = settings.slurm_slowest_poll_seconds if slurm else settings.tick_seconds
    reconciler = Reconciler(services, scheduler, submitter, lease)
    loop = ReconcileLoop(reconciler, services.metrics, settings.tick_seconds, slowest)
    hand_overs.done = loop.hint
    loop.spare = partial(_retain, services)
    return loop


def _retain(services: Services) -> bool:
    before = cutoff(services.clock(), services.settings.metrics_retention_days)
    return before is not None and trim(services.database, before)


class _Server(uvicorn.Server):
    """Ends the live streams first: they would hold up a stop for as long as it waits for open requests."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]):
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def _run(config: uvicorn.Config, services: Services, parts: Sequence[_Part]) -> None:
    """Listen first: a service that cannot be reached must not act on jobs either."""
    settings = services.settings
    log = structlog.get_logger("service")
    # uvicorn stops at a SIGTERM and then raises it anew; by default that would end the process before what is below.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _listening(settings) as listener:
        url_file = service_url_file(settings.state)
        write_atomic(url_file, settings.service_url + "\n")
        for part in parts:
            part.start()
        log.info("serving", url=settings.service_url, backend=settings.backend, runs=str(settings.runs))
        token = settings.admin_token_file or admin_token_file(settings.state)
        log.info("dashboard", page=f"{settings.service_url}/jobs", token=str(token))
        try:
            _Server(config, services.broadcaster.close).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            for part in reversed(parts):
                part.stop()
            url_file.unlink(missing_ok=True)
            log.info("stopped; jobs that run go on, and the next start finds them")


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Raises StartError when the address is taken or not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise StartError(
            f"cannot listen on {where}: {error.strerror}; set TRAINYARD_PORT or TRAINYARD_HOST to another"
        ) from None
    with listener:
        yield listener


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
