"""The prepared environment of a node: the interpreter of its ranks, and the changes of the preparation."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainyard.contract.layout import write_atomic
from trainyard.contract.spec.environment import is_set_for_ranks, rank_variables
from trainyard.contract.spec.training_spec import TrainingSpec
from worker.environment.rank_command import RANK_ENVIRONMENT_VARIABLE, RankCommand

_OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
_OF_THE_SERVICE = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV")
"""Variables of the service's own Python. The preparation begins without them."""


@dataclass(frozen=True)
class Changes:
    """The changes that the preparation made to the environment."""

    assigned: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def preparation_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which the preparation begins: the launcher's, without the variables of its Python."""
    return {name: value for name, value in environ.items() if name not in _OF_THE_SERVICE}


def changes_between(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    """Return the difference. Variables that the service, the scheduler or torchrun sets for each rank never differ."""
    assigned = {name: value for name, value in after.items() if before.get(name) != value}
    return Changes(
        {name: value for name, value in assigned.items() if _may_change(name)},
        tuple(name for name in before if name not in after and _may_change(name)),
    )


def _may_change(name: str) -> bool:
    return name not in _OF_THE_SHELL and not name.startswith("_trainyard_") and not is_set_for_ranks(name)


@dataclass(frozen=True)
class InterpreterEnvironment:
    """Ranks in a Python of the node: the service's, or a Python that the spec names."""

    interpreter: str
    changes: Changes
    spec_variables: Mapping[str, str]
    """Variables and secrets of the spec, which take precedence over the changes."""
    search_path: Sequence[Path] = ()
    """Folders from which the ranks import in addition."""
    imports_folder: bool = False
    """Whether the ranks may import from their working directory, as a user's program does."""

    def command(self, arguments: Sequence[str], variables: Mapping[str, str], folder: Path) -> RankCommand:
        """Return the command of the interpreter. See `RankEnvironment`."""
        rank = variables_in(variables, self.changes, self.spec_variables, own=self.interpreter != sys.executable)
        if paths := [*map(str, self.search_path), *filter(None, [rank.get("PYTHONPATH")])]:
            rank["PYTHONPATH"] = os.pathsep.join(paths)
        if self.imports_folder:
            rank.pop("PYTHONSAFEPATH", None)
        else:
            rank["PYTHONSAFEPATH"] = "1"
        return RankCommand((self.interpreter, *arguments), rank)


def variables_in(
    variables: Mapping[str, str], changes: Changes, spec_variables: Mapping[str, str], *, own: bool
) -> dict[str, str]:
    """Return a rank's variables, with the changes of the preparation and then the spec's variables applied.

    Args:
        variables: The variables with which torchrun started the rank.
        own: Whether the interpreter is not the service's, whose `VIRTUAL_ENV` it must not have.
    """
    dropped = {"PYTHONPATH", RANK_ENVIRONMENT_VARIABLE, *changes.removed}
    if own:
        dropped |= set(_OF_THE_SERVICE)
    rank = {name: value for name, value in variables.items() if name not in dropped}
    return {**rank, **changes.assigned, **spec_variables}


@dataclass(frozen=True)
class Prepared:
    """The environment that a node's launcher writes for its ranks."""

    interpreter: str
    changes: Changes = Changes()
    search_path: tuple[str, ...] = ()
    container: str = ""
    """The file with the plan of the container in which the ranks run. Empty: none."""


def write_prepared(path: Path, prepared: Prepared) -> None:
    """Write the file, readable by the owner alone. Bytes that are not UTF-8 are escaped."""
    write_atomic(path, json.dumps(asdict(prepared)), mode=0o600)


def read_prepared(path: Path) -> Prepared:
    document = json.loads(path.read_text())
    changes = Changes(document["changes"]["assigned"], tuple(document["changes"]["removed"]))
    return Prepared(document["interpreter"], changes, tuple(document["search_path"]), document["container"])


def spec_values(spec: TrainingSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the spec's variables and secrets, which torchrun has set in the rank."""
    secrets: Iterable[str] = spec.environment.secrets
    return rank_variables(spec, {name: variables.get(name, "") for name in secrets})
