"""A rank on this node: its variables, except the run's own, and the node's part of the attempt."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE, matches_any
from trainyard.contract.wire.launch import LaunchDocument
from worker.core.processes import RANK_VARIABLE, start_time

COMPANION_VARIABLE = "TRAINYARD_COMPANION"
"""The variable that marks programs beside a rank: they are not ranks, although they have a rank's variables."""
PYTHON_VARIABLE = "TRAINYARD_PYTHON"
"""The variable with the interpreter of the ranks."""
NODE_VARIABLE = "SLURMD_NODENAME"

_OF_THE_RUN = ("TORCHELASTIC_*", "MASTER_ADDR", "MASTER_PORT", "TRAINYARD_*", "PYTHONSAFEPATH")
"""Variables with which a program would report as the rank, join its process group, or write its error file."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class RankProcess:
    """A rank that runs on this node."""

    rank: int
    variables: Mapping[str, str]
    """The variables at the rank's start, including secrets."""


def find_rank(attempt_id: str, node: str | None, rank: int | None, proc: Path = _PROC) -> RankProcess | None:
    """Return a rank of an attempt among the processes of this machine; None if it does not run.

    Args:
        node: The node's name in Slurm. Several nodes may be on one machine.
        rank: The rank; None: the lowest rank.
    """
    matching = [
        (int(variables[RANK_VARIABLE]), started, variables)
        for pid, variables in _processes(proc)
        if variables.get(ATTEMPT_VARIABLE) == attempt_id
        and COMPANION_VARIABLE not in variables
        and variables.get(RANK_VARIABLE, "").isdecimal()
        and (node is None or variables.get(NODE_VARIABLE) == node)
        and (rank is None or int(variables[RANK_VARIABLE]) == rank)
        and (started := start_time(pid)) is not None
    ]
    # The processes that a rank starts have its variables, too, but started later.
    first = min(matching, key=lambda one: one[:2], default=None)
    return RankProcess(first[0], first[2]) if first else None


def _processes(proc: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes whose variables this account may read."""
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            try:
                content = os.fsdecode((entry / "environ").read_bytes())
            except OSError:
                continue
            pairs = (part.partition("=") for part in content.split("\0"))
            yield int(entry.name), {name: value for name, equals, value in pairs if equals}


def companion_variables(
    rank: Mapping[str, str], secrets: Collection[str], terminal: Mapping[str, str], interpreter: str
) -> dict[str, str]:
    """Return the variables of a program beside a rank.

    Args:
        rank: The rank's variables.
        secrets: Names of the spec's secrets, which the program does not get.
        terminal: The variables of this process, from which the terminal's are taken.
        interpreter: The interpreter of the ranks.
    """
    variables = {
        name: value for name, value in rank.items() if name not in secrets and not matches_any(name, _OF_THE_RUN)
    }
    variables |= {name: terminal[name] for name in ("TERM", "COLORTERM") if name in terminal}
    variables |= {COMPANION_VARIABLE: "1", PYTHON_VARIABLE: interpreter}
    if ATTEMPT_VARIABLE in rank:
        # The local backend ends processes with the attempt's tag together with the attempt.
        variables[ATTEMPT_VARIABLE] = rank[ATTEMPT_VARIABLE]
    return variables


def with_interpreter(path: str, interpreter: str) -> str:
    """Return the PATH on which `python3` is the interpreter, as far as the interpreter's folder has it under that name.

    Args:
        path: The rank's PATH.
    """
    folder = os.path.dirname(interpreter)
    own = os.path.join(folder, "python3")
    if not os.path.isabs(interpreter) or not os.path.exists(own) or not os.path.samefile(own, interpreter):
        return path
    first = next((one for one in path.split(os.pathsep) if os.access(os.path.join(one, "python3"), os.X_OK)), None)
    return path if first == folder else os.pathsep.join(filter(None, [folder, path]))


def working_folder(layout: AttemptLayout, launch: LaunchDocument) -> Path:
    """Return the working directory of the ranks."""
    return layout.work / launch.spec.start_folder if launch.spec.task_kind.runs_program else layout.root


def node_of(layout: AttemptLayout, launch: LaunchDocument, rank: int) -> int:
    """Return the number of the node that runs a rank.

    Raises:
        ValueError: No node has recorded this rank.
    """
    for node in range(launch.nodes):
        try:
            document = json.loads(layout.placement(node).read_bytes())
        except (OSError, ValueError):
            continue
        if rank in document["ranks"]:
            return node
    raise ValueError(f"no node has recorded that it runs rank {rank}")
