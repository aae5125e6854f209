"""Which tests each process of `pytest -n` collects, and how the processes share the work.

Torch and the libraries around it take longer to import than all other modules together, and each process with tests of
the dashboard starts a browser. So every second process imports torch, and the others start a browser; where most tests
need torch, all import it and one starts a browser. All run the rest.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

Group = Literal["torch", "browser", "plain"]

BROWSER = ("tests/web",)
REAL_JOBS = "tests/web/real_jobs"
"""Tests of the dashboard that share a service in a process of its own; they run in one process."""
TORCH = (
    "tests/e2e/test_models.py",
    "tests/gpu",
    "tests/integration/service/plugins/planner",
    "tests/integration/worker",
    "tests/unit/bench",
    "tests/unit/docs/test_tasks.py",
    "tests/unit/service/files/test_line_checks.py",
    "tests/unit/service/plugins/planner",
    "tests/unit/trainyard/loading",
    "tests/unit/trainyard/test_export_command.py",
    "tests/unit/trainyard/test_generate_command.py",
    "tests/unit/worker",
)
"""Folders and files whose modules import torch. The others may import it only inside of a test."""
_MODULES_OF_WORKER = (
    "comm_check containers environment failures forked_ranks hangs idle_programs profiling program_output "
    "rank_environment rank_meeting repeated_failures script service_outage tracker_input tracker_stops warning_signal"
)
WITHOUT_TORCH = (
    *(f"tests/integration/worker/test_{name}.py" for name in _MODULES_OF_WORKER.split()),
    "tests/unit/worker/environment",
    "tests/unit/worker/launcher/test_exit_record.py",
    "tests/unit/worker/launcher/test_stalls.py",
)
"""Folders and files below `TORCH` that only start processes with torch, and mostly wait for them; so any process runs
them."""
LONG = (
    "tests/integration/worker/test_hangs.py",
    "tests/integration/worker/test_script.py",
    "tests/integration/worker/test_service_outage.py",
    "tests/integration/worker/test_sharding.py",
    "tests/integration/worker/test_warning_signal.py",
    "tests/unit/trainyard/test_generate_command.py",
    "tests/unit/worker/data/test_text_sources.py",
    "tests/unit/worker/environment/test_preparation.py",
    "tests/unit/worker/launcher/test_exit_record.py",
    "tests/unit/worker/trackers/test_mlflow.py",
    "tests/unit/worker/trackers/test_wandb.py",
)
"""Files that take long, and whose paths come late in the alphabet; a process runs them before others of their group, so
that none works alone at the end."""


def group_of(path: str) -> Group:
    """Return the group of a folder or file, by its path relative to the root."""
    if _is_below(path, BROWSER):
        return "browser"
    # A folder with modules of both groups is collected by all processes.
    without = _is_below(path, WITHOUT_TORCH) or any(_is_below(module, [path]) for module in WITHOUT_TORCH)
    return "torch" if _is_below(path, TORCH) and not without else "plain"


def position(path: str, groups: Sequence[Group]) -> tuple[int, bool]:
    """Return the key by which a process sorts the files of its groups; others stay in their order."""
    return groups.index(group_of(path)), path not in LONG


def may_have_heavy(module: Path) -> bool:
    """Return whether the text of a module names the marker `heavy`, or a module of this folder that uses it.

    Nine of ten test modules have no heavy test. Their collection takes twice the time of the others.
    """
    text = module.read_text()
    return any(word in text for word in ("heavy", *_modules_with_heavy()))


@cache
def _modules_with_heavy() -> tuple[str, ...]:
    files = Path(__file__).parent.glob("*.py")
    return tuple(file.stem for file in files if "mark.heavy" in file.read_text())


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def groups_of_process(number: int, count: int, *, mostly_torch: bool = False) -> tuple[Group, ...]:
    """Return the groups that one of `count` processes collects, the ones that it runs first before the others."""
    if count == 1:
        return ("torch", "browser", "plain")
    if mostly_torch:
        return ("browser", "plain", "torch") if number == count - 1 else ("torch", "plain")
    return ("browser", "plain") if number % 2 else ("torch", "plain")


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process whole files of its collection, in the order of that collection.

    So a module's fixtures are made once. xdist's own classes need the same collection in each process.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._positions: dict[WorkerController, dict[str, int]] = {}
        self._units: dict[WorkerController, list[str]] = {}

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return REAL_JOBS if _is_below(file, [REAL_JOBS]) else file

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self.registered_collections[node] = list(collection)
        self._positions[node] = {nodeid: position for position, nodeid in enumerate(collection)}
        self._units[node] = list(dict.fromkeys(self._split_scope(nodeid) for nodeid in collection))

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = list(dict.fromkeys(chain.from_iterable(self.registered_collections.values())))
            for nodeid in self.collection:
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        for node in self.nodes:
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        # A process starts a test when it knows the next one, and therefore needs more than two.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            unit = next((unit for unit in self._units[node] if unit in self.workqueue), None)
            if unit is None:
                node.shutdown()
            else:
                self._assign(node, unit)

    def _assign(self, node: WorkerController, unit: str) -> None:
        tests = self.assigned_work[node][unit] = self.workqueue.pop(unit)
        node.send_runtest_some([self._positions[node][nodeid] for nodeid, done in tests.items() if not done])
