"""Replaces a rank of a `script` job by the user's program, in the same process and with the same log."""

import inspect
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.spec.environment import is_of_torchrun, program_variables
from trainyard.contract.spec.prerequisites import prerequisite_runs
from trainyard.contract.spec.training_spec import TrainingSpec
from trainyard.contract.wire.launch import LaunchDocument
from trainyard.contract.wire.reports import EventsBatch, WorkerEvent
from trainyard.contract.wire.spool import format_record
from trainyard.progress_file import interval
from trainyard.script import CHECKPOINTS, FOLDER, PROGRESS_INTERVAL, RESUMED
from worker.core.first_failure import describe_restart
from worker.environment import start_command
from worker.environment.program_hook import ERROR_FILE, RECORD
from worker.environment.rank_command import RankCommand, execute
from worker.environment.select import rank_environment
from worker.environment.start_command import PYTHON_NAME, without_variables
from worker.trackers.variables import tracker_variables

ARTIFACTS = "TRAINYARD_ARTIFACT_DIR"
"""The environment variable with the path of the job's folder of artifacts."""

AFTER = "TRAINYARD_AFTER"
"""The environment variable with the run directories of the jobs in `after` of the spec, separated by colons."""


def exec_script(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> NoReturn:
    """Execute the spec's program in this process."""
    if os.environ["RANK"] == "0" and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        write_restart_event(layout, launch, execution)
    folder = layout.work / launch.spec.start_folder
    os.chdir(folder)
    variables = script_variables(os.environ, layout, launch.spec)
    resume = resume_arguments(launch.spec.resume_argv, variables[CHECKPOINTS]) if variables[RESUMED] == "1" else []
    program = [*arguments(launch.spec), *resume]
    page = f"{(launch.public_url or launch.service_url).rstrip('/')}/jobs/{launch.job_id}"
    variables |= tracker_variables(variables, execution, page)
    if not launch.is_distributed:
        variables = {name: value for name, value in variables.items() if name == ERROR_FILE or not is_of_torchrun(name)}
    environment = rank_environment(launch.spec, os.environ)
    if environment is None:
        paths = [str(layout.packages), *filter(None, [variables.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    # Slurm signals every process of a job that must end: the program learns it from `should_stop` and is not killed.
    # SIGUSR1 requests stacks, which `trainyard.script` writes once it is in use.
    warning = launch.spec.restart.signal
    # A shell cannot handle a signal that is ignored when it starts.
    handled = {signal.Signals[warning.name]} if warning and launch.spec.runs_command else set()
    execute(
        environment.command(program, variables, folder)
        if environment
        else RankCommand((sys.executable, *program), variables),
        handled,
    )


def write_restart_event(layout: AttemptLayout, launch: LaunchDocument, execution: int) -> None:
    """Write the execution's first record, the event of the restart, since the program does not know of it."""
    message, data = describe_restart(layout, execution, launch.spec)
    event = WorkerEvent(
        sequence=0, type="restarted_in_place", level="warning", message=message, data=data, time=datetime.now(UTC)
    )
    record = format_record(0, "events", EventsBatch(execution=execution, events=(event,)))
    layout.spool_file(execution).write_bytes(record)


def arguments(spec: TrainingSpec) -> list[str]:
    """Return the arguments of the interpreter that run the program in its working directory.

    The program finds the path in `sys.argv[0]`, which is relative as in a shell.
    """
    program, variables = [*(spec.argv or ("",))], program_variables(spec)
    if not spec.runs_command and not variables:
        return program
    # Without the site's modules, the hook of exceptions is left to the command, which may be Python itself.
    start = ["-I", "-S", "-c", inspect.getsource(start_command)]
    setting = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    return [*start, *setting, *([] if spec.runs_command else ["python"]), *program]


def resume_arguments(argv: Sequence[str], checkpoints: str) -> list[str]:
    """Return the arguments that are added because the program has checkpoints."""
    return [argument.replace("{checkpoint_dir}", checkpoints) for argument in argv]


def script_variables(base: Mapping[str, str], layout: AttemptLayout, spec: TrainingSpec) -> dict[str, str]:
    """Return the rank's environment with the variables of `trainyard.script`; it allows imports from the folder."""
    stall_minutes = spec.health.stall_timeout_minutes
    # submitit in the program would take itself for a job of submitit.
    left_out = re.compile("PYTHONSAFEPATH|SUBMITIT_.*")
    inherited = {name: value for name, value in base.items() if not left_out.fullmatch(name)}
    watchdog = {} if stall_minutes is None else {PROGRESS_INTERVAL: str(interval(stall_minutes * 60.0))}
    run = RunLayout(layout.root.parent.parent)
    folders = {CHECKPOINTS: run.checkpoints, ARTIFACTS: run.artifacts}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    own = {FOLDER: str(layout.root), RESUMED: base.get(RESUMED, "0")}
    own |= {name: str(folder) for name, folder in folders.items()}
    earlier = prerequisite_runs(spec.after, run.root.parent)
    own |= {AFTER: os.pathsep.join(map(str, earlier))} if earlier else {}
    if not spec.runs_command or PYTHON_NAME.fullmatch(without_variables([*(spec.argv or ("",))])[0]):
        own[RECORD] = "1"
    return {**inherited, **watchdog, **own, "PYTHONUNBUFFERED": "1"}
