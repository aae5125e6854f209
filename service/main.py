"""The composition root: parses the command line, reads the settings and builds every part of the service."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
import uvicorn
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from service.api.connection_limits import limited_protocol
from service.api.dependencies import AppState
from service.api.plugin import Plugin
from service.as_owner.calls import start_problem
from service.as_owner.runs_folder import closed_parents, prepare_runs_folder
from service.auth.principals import ensure_admin_token, register_admin_token
from service.backup.commands import backup, restore
from service.core.clock import utc_now
from service.core.errors import ServiceError
from service.core.observability import configure_logging
from service.core.periodic_task import PeriodicTask
from service.core.private_files import restrict_permissions
from service.core.python_version import describe_missing
from service.core.settings import Settings, unknown_variables
from service.db.engine import Database
from service.db.leader_lease import LeaderLease, lease_owner
from service.db.migrate import current, head, upgrade
from service.diagnostics.checks import examine_slurm, run_checks
from service.diagnostics.root_checks import ROOTS_FIX, root_problems
from service.maintenance import task as maintenance
from service.metrics import summaries
from service.metrics.retention import cutoff, trim
from service.metrics.summaries import BackFill, Summarizer
from service.plugins.installed import enabled_plugins, select_plugins
from service.reconciler.poll_loop import ChangeWatcher, ReconcileLoop
from service.reconciler.reconciler import Reconciler
from service.reconciler.submission.pool import SubmitPool
from service.reconciler.submission.submitter import Submitter
from service.scheduler.backends import BACKENDS
from service.scheduler.base import Scheduler
from service.scheduler.launch_document import source_tree
from service.scheduler.local.policy import visible_gpus
from service.scheduler.local.scheduler import LocalScheduler
from service.scheduler.slurm.batch_script import is_plain_path
from service.scheduler.slurm.scheduler import SlurmScheduler
from service.secrets.encryption import SecretCipher
from service.server import (
    BackgroundService,
    StartError,
    exclusive_lock,
    freeze_gc,
    run_server,
    tune_interpreter,
    usable_connections,
)
from service.web.app import create_app
from trainyard.contract.local_paths import admin_token_file
from trainyard.contract.spec.environment import ineffective_patterns
from trainyard.contract.validation_messages import describe_error

_CONCURRENT_SUBMISSIONS = 4
"""Each mostly waits for sbatch; more of them would compete with the requests, and load slurmctld."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m service", description="The Trainyard service.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="run the API and, unless TRAINYARD_RECONCILE is false, the reconciler")
    commands.add_parser("migrate", help="upgrade the database to the schema of this release")
    check = commands.add_parser("doctor", help="check the installation; prints one JSON object per finding")
    check.add_argument("--scheduler", action="store_true", help="run only the check of the Slurm controller")
    saved = commands.add_parser("backup", help="write a backup of the database, which may be in use, to a new file")
    saved.add_argument("file", type=Path, metavar="FILE")
    restored = commands.add_parser("restore", help="replace the database of a stopped service by a backup")
    source = restored.add_mutually_exclusive_group(required=True)
    source.add_argument("file", nargs="?", type=Path, metavar="FILE")
    source.add_argument("--database-is-restored", action="store_true", help="the database was restored by other means")
    restored.add_argument("--dry-run", action="store_true", help="only report what would be done")
    arguments = parser.parse_args(argv)
    try:
        settings = Settings()
        configure_logging(settings.log_format)
        for name, suggestion in unknown_variables(os.environ):
            meant = f"; did you mean {suggestion}?" if suggestion else ""
            structlog.get_logger("service").warning(f"{name} is not a setting and has no effect{meant}")
        for pattern in ineffective_patterns(settings.allowed_variables):
            structlog.get_logger("service").warning(
                f"TRAINYARD_ALLOWED_VARIABLES: {pattern} has no effect: no spec may set such a variable"
            )
        if arguments.command == "serve":
            _warn(settings)
        if arguments.command == "doctor":
            return doctor(settings, scheduler_alone=arguments.scheduler)
        if arguments.command == "backup":
            backup(settings, arguments.file, utc_now(), print)
            return 0
        if arguments.command == "restore":
            return restore_database(settings, arguments.file, dry_run=arguments.dry_run)
        return {"serve": serve, "migrate": migrate}[arguments.command](settings)
    except ValidationError as error:
        for problem in error.errors():
            name = str(problem["loc"][0] if problem["loc"] else "").upper()
            print(f"TRAINYARD_{name}: {describe_error(problem)}", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"trainyard: cannot use the database: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except (ServiceError, StartError, OSError) as error:
        print(f"trainyard: {error}", file=sys.stderr)
        return 1


def _warn(settings: Settings) -> None:
    """Log warnings about this Python and unsafe settings."""
    messages = [f"{problem}, which users can read through a job: {ROOTS_FIX}" for problem in root_problems(settings)]
    if (missing := describe_missing(sys.version_info[:3])) is not None:
        messages.append(missing)
    if settings.public_url.startswith("https:") and not settings.trusted_proxies:
        messages.append(
            "TRAINYARD_PUBLIC_URL is https and TRAINYARD_TRUSTED_PROXIES is empty, so limits and the audit take all "
            "clients for the proxy; set it to the address from which the proxy connects"
        )
    for message in messages:
        structlog.get_logger("service").warning(message)


def migrate(settings: Settings) -> int:
    """Apply the missing migrations."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    restrict_permissions(settings.state, settings.url)
    upgrade(settings.url)
    return 0


def restore_database(settings: Settings, file: Path | None, *, dry_run: bool) -> int:
    """Restore a backup, while no service of this state folder runs."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.umask(settings.umask)
    with exclusive_lock(settings.state / "lock"):
        restore(settings, file, utc_now(), print, dry_run=dry_run)
    return 0


def doctor(settings: Settings, *, scheduler_alone: bool = False) -> int:
    """Print each finding of the diagnostics; return 1 if any is an error."""
    failed = False
    more = [check for plugin in enabled_plugins(settings.disabled_plugins) for check in plugin.checks]
    for finding in examine_slurm(settings) if scheduler_alone else run_checks(settings, more):
        failed |= finding.state == "error"
        print(finding.model_dump_json(), flush=True)
    return int(failed)


def serve(settings: Settings) -> int:
    """Run the API, and the reconciler unless it is switched off, until a signal arrives."""
    if settings.secrets_key_file is not None:
        SecretCipher.from_settings(settings).load_key()
    tune_interpreter()
    os.umask(settings.umask)
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    restrict_permissions(settings.state, settings.url)
    _prepare_runs(settings)
    with exclusive_lock(settings.state / "lock"):
        _prepare_schema(settings)
        database = Database(settings.url)
        app_state = AppState(settings=settings, database=database, clock=utc_now)
        if (problem := app_state.secrets.check_key()) is not None:
            structlog.get_logger("service").warning(f"users' secrets cannot be read: {problem}")
        _admin_token(app_state)
        database.after_commit.append(Summarizer(database).on_commit)
        plugins, disabled = select_plugins(settings.disabled_plugins)
        scheduler = make_scheduler(app_state) if settings.reconcile else None
        app = create_app(app_state, plugins, disabled=disabled)
        background = background_services(app_state, scheduler, plugins, disabled) if scheduler is not None else []
        connections = usable_connections(settings.max_connections)
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=limited_protocol(
                connections,
                # One address keeps its share of the connections.
                per_address=max(1, settings.max_connections_per_address * connections // settings.max_connections),
                trusted_proxies=settings.trusted_proxies,
            ),
            ws="none",
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=64 * 1024,
        )
        freeze_gc()
        try:
            run_server(config, settings, background, end_streams=app_state.broadcaster.close)
        finally:
            app_state.process_pool.close()
            database.dispose()
    return 0


def _prepare_runs(settings: Settings) -> None:
    """Make the folder of the runs.

    Raises:
        ServiceError: jobs run as their owners, who could not use the folder, or could misuse it.
        StartError: the service cannot act as the owners of jobs.
    """
    if settings.run_as == "service":
        settings.runs.mkdir(parents=True, exist_ok=True)
        return
    prepare_runs_folder(settings.runs, settings.state)
    for folder in closed_parents(settings.runs):
        message = f"{folder}: other accounts cannot enter it, so their jobs may not start"
        structlog.get_logger("service").warning(message)
    if settings.reconcile and (problem := start_problem(settings)) is not None:
        raise StartError(problem)


def _prepare_schema(settings: Settings) -> None:
    """Migrate the database, or on a replica of the API only check its schema.

    Raises:
        StartError: this is a replica, and the schema belongs to another release.
    """
    if settings.reconcile:
        upgrade(settings.url)
    elif (revision := current(settings.url)) != head():
        raise StartError(
            f"the database is at schema {revision or 'none'} but this release needs {head()}: "
            "run python -m service migrate"
        )


def _admin_token(app_state: AppState) -> None:
    given = app_state.settings.admin_token_file
    if given is not None:
        register_admin_token(app_state.database, given, app_state.clock())
    else:
        ensure_admin_token(app_state.database, admin_token_file(app_state.settings.state), app_state.clock())


def background_services(
    app_state: AppState, scheduler: Scheduler, plugins: Sequence[Plugin] = (), disabled: Sequence[Plugin] = ()
) -> list[BackgroundService]:
    """Build the services that only the leader runs, in the order of their start.

    Args:
        disabled: Plugins that are switched off. Their stored rows still end with their retention.
    """
    loop = make_loop(app_state, scheduler, plugins)
    maintenance_task = maintenance.MaintenanceTask(
        app_state.database,
        loop.lease,
        app_state.settings,
        app_state.clock,
        app_state.run_files,
        app_state.audit_log.flush,
        app_state.failpoint,
        [plugin.delete_old for plugin in (*plugins, *disabled)],
    )
    cleanup = PeriodicTask("maintenance", maintenance_task.run_once, maintenance.SECONDS)
    app_state.notify_cleanup = cleanup.notify
    app_state.notify_reconciler = loop.hint
    filling = BackFill(app_state.database, time.monotonic)
    values = PeriodicTask("values", filling.run_once, summaries.SECONDS)
    tasks = [task for plugin in plugins for task in plugin.make_tasks(app_state, loop.lease)]
    background: list[BackgroundService] = [loop, cleanup, *tasks, values]
    if app_state.database.dialect == "postgresql":
        watcher = ChangeWatcher(app_state.database, loop.hint)
        background.append(PeriodicTask("change-watcher", watcher.run_once, ChangeWatcher.SECONDS))
    return background


def make_scheduler(app_state: AppState) -> Scheduler:
    """Build the adapter of the configured backend.

    Raises:
        StartError: Slurm's commands are missing, or the runs directory has a name that Slurm cannot use.
    """
    settings = app_state.settings
    if settings.backend == "slurm":
        missing = [
            name for name in ("sbatch", "srun", "squeue", "sacct", "scancel", "sinfo") if shutil.which(name) is None
        ]
        if missing:
            raise StartError(
                f"TRAINYARD_BACKEND=slurm needs Slurm's client commands; missing on PATH: {', '.join(missing)}"
            )
        if not is_plain_path(settings.runs):
            raise StartError(
                f"TRAINYARD_RUNS_DIR={settings.runs}: on Slurm it may contain only letters, digits and _./+@=,-"
            )
        return SlurmScheduler(
            poll_seconds=settings.slurm_poll_seconds,
            submit_seconds=settings.slurm_submit_timeout_seconds,
            count=app_state.metrics.command,
            owners=app_state.owners,
            runs=settings.runs,
        )
    gpus = visible_gpus(os.environ, os.listdir("/dev")) if settings.known_accelerator == "cuda" else ()
    return LocalScheduler(settings.state, settings.local_slots, utc_now, gpus=gpus, owners=app_state.owners)


def make_loop(app_state: AppState, scheduler: Scheduler, plugins: Sequence[Plugin] = ()) -> ReconcileLoop:
    """Build the reconciler and the loop that runs it."""
    settings, is_slow = app_state.settings, BACKENDS[scheduler.name].is_slow
    lease = LeaderLease(app_state.database, lease_owner(app_state.settings.state))
    # The local queue answers immediately; sbatch may hang for minutes, and so may whatever is done as an owner.
    pool = SubmitPool(threads=_CONCURRENT_SUBMISSIONS if is_slow or app_state.owners else 0)
    submitter = Submitter(
        database=app_state.database,
        settings=settings,
        clock=app_state.clock,
        acceptance=app_state.acceptance,
        scheduler=scheduler,
        lease=lease,
        metrics=app_state.metrics,
        pool=pool,
        search_path=source_tree(),
        failpoint=app_state.failpoint,
        run_files=app_state.run_files,
    )
    max_tick_seconds = settings.slurm_max_poll_seconds if is_slow else settings.tick_seconds
    reconciler = Reconciler(
        database=app_state.database,
        clock=app_state.clock,
        settings=settings,
        quotas=app_state.quotas,
        scheduler=scheduler,
        submitter=submitter,
        lease=lease,
        metrics=app_state.metrics,
        failpoint=app_state.failpoint,
        scheduler_work=[work for plugin in plugins for work in plugin.make_scheduler_work(app_state, scheduler, lease)],
    )
    loop = ReconcileLoop(reconciler, app_state.metrics, settings.tick_seconds, max_tick_seconds)
    pool.on_result = loop.hint
    loop.idle_work = partial(_trim_metrics, app_state)
    return loop


def _trim_metrics(app_state: AppState) -> bool:
    """Delete some raw points that are past their retention; return whether more remain."""
    before = cutoff(app_state.clock(), app_state.settings.metrics_retention_days)
    return before is not None and trim(app_state.database, before)
