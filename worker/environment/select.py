"""Selects the environment of the ranks from the spec and the preparation by the node's launcher."""

from collections.abc import Mapping
from pathlib import Path

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.environment.containers.plan import ContainerEnvironment
from worker.environment.prepared import InterpreterEnvironment, Prepared, read_prepared, spec_values
from worker.environment.rank_command import RANK_ENVIRONMENT_VARIABLE, RankEnvironment


def rank_environment(spec: TrainingSpec, variables: Mapping[str, str]) -> RankEnvironment | None:
    """Return the environment of a rank from its variables; None if it runs in the service's Python and environment."""
    path = variables.get(RANK_ENVIRONMENT_VARIABLE)
    if path is None:
        return None
    return select_environment(spec, read_prepared(Path(path)), spec_values(spec, variables))


def select_environment(spec: TrainingSpec, prepared: Prepared, values: Mapping[str, str]) -> RankEnvironment:
    """Return the environment that the spec names.

    Args:
        values: Variables and secrets of the spec.
    """
    if prepared.container:
        return ContainerEnvironment(Path(prepared.container))
    return InterpreterEnvironment(
        prepared.interpreter,
        prepared.changes,
        values,
        search_path=tuple(map(Path, prepared.search_path)),
        imports_folder=spec.task_kind.runs_program,
    )
