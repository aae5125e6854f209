"""Problems of a spec that `trainyard run` made, in the terms of its command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trainyard.client.errors import InvalidRequestError
from trainyard.client.program_spec import ProgramOptions
from trainyard.contract.problems import Problem, SpecError
from trainyard.contract.wire.jobs import JobResource

_OPTIONS = {
    "gpus": "--gpus",
    "nodes": "--nodes",
    "resources.gpus_per_node": "--nodes",
    "resources.partition": "--partition",
    "resources.time_limit_minutes": "--time",
    "time": "--time",
    "per": "--per",
    "launch.per": "--per",
    "name": "--name",
    "project": "--project",
    "include": "--include",
    "keep": "--keep",
    "after": "--after",
    "env": "--env",
    "environment.variables": "--env",
    "environment.secrets": "--secret",
    "environment.venv": "--venv",
    "venv": "--venv",
    "environment.container": "--container",
    "container": "--container",
    "restart.max_retries": "--retries",
    "restart.signal": "--signal",
    "signal": "--signal",
    "resume_flag": "--resume-flag",
    "resume_argv": "--resume-flag",
}
"""The option that sets a field of the spec, and the fields below it."""
_OF_THE_COMMAND = frozenset({"argv", "code", "command", "launch", "task", "environment.python", "environment.conda"})
"""Fields that come from the command and its folder: their problems are stated without a name."""


_FIELD = re.compile(r"`([a-z_.]+)`")
_FIELD_OF_LAUNCHER = re.compile(r"\b((?:environment|resources|restart)\.[a-z_]+)(?:\.[a-z_]+)?\b")


@contextmanager
def named_by_options(options: ProgramOptions, *, as_json: bool) -> Iterator[None]:
    """Translate the problems that the block raises: from fields of the spec to options of the command line.

    Args:
        as_json: Whether a program reads the problems. It gets the fields.
    """
    try:
        yield
    except (SpecError, InvalidRequestError) as error:
        if as_json:
            raise
        problems = [_translated(problem, options) for problem in error.problems]
        raise InvalidRequestError(problems[0].message, problems=problems) from error


def option_of(field: str, options: ProgramOptions) -> str:
    """Return the option that a field of the spec comes from, with the user's value; the field if there is none."""
    if field == "resources":
        given = {"--partition": options.partition, "--nodes": options.nodes, "--time": options.time}
        return next((option for option, value in given.items() if value), field)
    parts = field.split(".")
    for number in range(len(parts), 0, -1):
        above, below = ".".join(parts[:number]), parts[number:]
        if above in _OF_THE_COMMAND:
            return ""
        if option := _OPTIONS.get(above):
            values = {"keep": options.keep, "after": options.after, "environment.secrets": options.secrets}.get(above)
            index = int(below[0]) if below and below[0].isdecimal() else None
            shown = [values[index]] if values and index is not None and index < len(values) else below
            return " ".join([option, *(shown if above == "environment.variables" or values else ())])
    return field


def with_options(job: JobResource) -> JobResource:
    """Return a job that the launcher has refused, with the fields in its messages as options.

    Errors of the program, which have a rank, stay as they are.
    """
    error = job.error
    if error is None or error.rank is not None:
        return job
    hint = error.hint and _with_options(error.hint)
    error = error.model_copy(update={"message": _with_options(error.message), "hint": hint})
    return job.model_copy(update={"error": error, "status_message": _with_options(job.status_message)})


def _with_options(text: str) -> str:
    return _FIELD_OF_LAUNCHER.sub(lambda match: _OPTIONS.get(match[0]) or _OPTIONS.get(match[1]) or match[0], text)


def _translated(problem: Problem, options: ProgramOptions) -> Problem:
    message = _FIELD.sub(lambda match: f"`{_OPTIONS.get(match[1], match[1])}`", problem.message)
    return Problem(param=option_of(problem.param, options), message=message)
