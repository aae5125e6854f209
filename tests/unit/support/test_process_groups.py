"""Each test of `make test` runs once, in a process that has collected it, whichever process ends first or dies."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.process_groups import (
    LONG,
    REAL_JOBS,
    WITHOUT_TORCH,
    SharedScheduling,
    group_of,
    groups_of_process,
    may_have_heavy,
    position,
)

ROOT = Path(__file__).parents[3]
TORCH = [f"tests/unit/worker/test_{name}.py::test_{number}" for name in "ab" for number in range(4)]
BROWSER = [f"tests/web/test_{name}.py::test_{number}" for name in "cd" for number in range(3)]
PLAIN = [f"tests/unit/contract/test_{name}.py::test_{number}" for name in "efgh" for number in range(3)]


class Node:
    """A test process, which runs what it is sent when the test says so."""

    def __init__(self, collection: list[str]) -> None:
        self.collection = collection
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture
def scheduling() -> SharedScheduling:
    option = SimpleNamespace(tx=["3*popen"], px=[], dist="load")
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    return SharedScheduling(config, None)


def start(scheduling: SharedScheduling, *collections: list[str]) -> list[Node]:
    nodes = [Node(collection) for collection in collections]
    for node in nodes:
        scheduling.add_node(node)
    for node in nodes:
        scheduling.add_node_collection(node, node.collection)
    assert scheduling.collection_is_completed
    scheduling.schedule()
    return nodes


def run_to_the_end(scheduling: SharedScheduling, *nodes: Node) -> dict[str, Node]:
    """Run tests of all processes in turn. Each starts a test when it knows the next one, or that there is none."""
    ran: dict[str, Node] = {}
    done = {id(node): 0 for node in nodes}
    for _ in range(1000):
        for node in nodes:
            position = done[id(node)]
            if position + (0 if node.shutting_down else 1) < len(node.sent):
                index = node.sent[position]
                assert node.collection[index] not in ran
                ran[node.collection[index]] = node
                done[id(node)] += 1
                scheduling.mark_test_complete(node, index)
    assert scheduling.tests_finished
    assert not scheduling.has_pending
    assert all(node.shutting_down for node in nodes)
    return ran


def test_every_test_runs_once_where_it_was_collected(scheduling: SharedScheduling) -> None:
    nodes = start(scheduling, TORCH + PLAIN, PLAIN, BROWSER + PLAIN)
    ran = run_to_the_end(scheduling, *nodes)
    assert set(ran) == {*TORCH, *BROWSER, *PLAIN}
    assert {ran[test] for test in TORCH} == {nodes[0]}
    assert {ran[test] for test in BROWSER} == {nodes[2]}


def test_a_process_begins_with_the_group_that_only_it_has(scheduling: SharedScheduling) -> None:
    nodes = start(scheduling, TORCH + PLAIN, PLAIN, BROWSER + PLAIN)
    assert [nodes[0].collection[index] for index in nodes[0].sent] == TORCH[:4]
    assert [nodes[2].collection[index] for index in nodes[2].sent] == BROWSER[:3]


def test_processes_with_a_browser_share_all_files_but_real_jobs(scheduling: SharedScheduling) -> None:
    real = [f"{REAL_JOBS}/test_{name}.py::test_{number}" for name in "ij" for number in range(3)]
    nodes = start(scheduling, TORCH, real + BROWSER, TORCH, real + BROWSER)
    ran = run_to_the_end(scheduling, *nodes)
    assert {ran[test] for test in real} == {nodes[1]}
    assert {ran[test] for test in BROWSER} <= {nodes[1], nodes[3]}
    assert ran[BROWSER[0]] is nodes[3]


def test_work_of_a_process_that_died_goes_to_its_successor(scheduling: SharedScheduling) -> None:
    nodes = start(scheduling, TORCH + PLAIN, PLAIN, BROWSER + PLAIN)
    scheduling.mark_test_complete(nodes[0], 0)
    assert scheduling.remove_node(nodes[0]) == TORCH[1]
    successor = Node(TORCH + PLAIN)
    scheduling.add_node(successor)
    scheduling.add_node_collection(successor, successor.collection)
    scheduling.schedule()
    ran = run_to_the_end(scheduling, successor, *nodes[1:])
    assert {test for test in ran if test in TORCH} == {*TORCH[1:]}


def test_paths_have_groups() -> None:
    assert group_of("tests/web/test_jobs.py") == group_of("tests/web") == "browser"
    assert group_of("tests/unit/worker/core/test_signals.py") == group_of("tests/unit/worker/core") == "torch"
    assert group_of("tests/unit/worker_like/test_a.py") == group_of("tests/unit") == "plain"


def test_modules_that_only_start_processes_with_torch_run_anywhere() -> None:
    assert group_of("tests/integration/worker/test_layouts.py") == "torch"
    assert group_of("tests/integration/worker/test_script.py") == group_of("tests/integration/worker") == "plain"
    assert group_of("tests/unit/worker/environment/test_plan.py") == group_of("tests/unit/worker") == "plain"
    for path in WITHOUT_TORCH:
        assert (ROOT / path).exists(), path


def test_long_files_come_first_in_their_group() -> None:
    long, other, plain = (
        "tests/unit/worker/trackers/test_wandb.py",
        "tests/gpu/test_training.py",
        "tests/unit/test_a.py",
    )
    assert sorted([plain, other, long], key=lambda path: position(path, ("torch", "plain"))) == [long, other, plain]
    for path in LONG:
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("mostly_torch", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_all_groups_are_collected_by_any_number_of_processes(count: int, mostly_torch: bool) -> None:
    groups = [groups_of_process(number, count, mostly_torch=mostly_torch) for number in range(count)]
    assert {group for collected in groups for group in collected} == {"torch", "browser", "plain"}
    assert sum("browser" in collected for collected in groups) == (1 if mostly_torch else max(1, count // 2))
    assert sum("torch" in collected for collected in groups) == (count if mostly_torch else (count + 1) // 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@pytest.mark.heavy\ndef test(): ...", True),
        ("from tests.support.tracker_clients import CLIENTS", True),
        ("from tests.support.world import World", False),
    ],
)
def test_modules_without_a_heavy_test_are_left_out(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "test_a.py").write_text(text)
    assert may_have_heavy(tmp_path / "test_a.py") is expected
