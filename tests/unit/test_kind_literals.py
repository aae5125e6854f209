"""The name of a task, a strategy or a precision stands in its registry only; elsewhere code decides by its facts."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from trainyard.contract.kinds.precisions import Precision
from trainyard.contract.kinds.strategies import Strategy
from trainyard.contract.kinds.tasks import Task, TaskKind, tasks_with

ROOT = Path(__file__).parents[2]
FOLDERS = ("trainyard", "service", "worker")

NAMES = {
    "task": frozenset(get_args(Task)),
    "strategy": frozenset(get_args(Strategy)) - {"auto"},
    "precision": frozenset(get_args(Precision)) - {"auto"},
}
"""The names of each kind. Many fields have a value `auto`, which is no kind."""
DATA_TYPES = frozenset({"bf16", "fp32"})
"""Names of precisions that also name data types of tensors: they count where they are compared with a precision."""

REGISTRIES = {
    "task": {"trainyard/contract/kinds/tasks.py", "worker/tasks/select.py"},
    "strategy": {"trainyard/contract/kinds/strategies.py", "worker/engine/strategies/select.py"},
    "precision": {"trainyard/contract/kinds/precisions.py", "worker/engine/precision.py"},
}
"""The files of each kind that may name it: the records, and one registration in the worker and in the planner."""

GENERATED = "_sync"
"""The folder of the client that is generated from another one."""
EXCEPTIONS = {
    "trainyard/cli/commands.py": ({"script"}, "the command `trainyard script`"),
    "trainyard/client/_async/jobs.py": ({"script"}, "the route of batch scripts"),
    "trainyard/contract/wire/jobs.py": ({"script", "image_classification"}, "the resource of a script; an example"),
    "trainyard/cli/environment_checks.py": ({"script"}, "a spec that is submitted"),
    "trainyard/cli/partition_checks.py": ({"regression"}, "a spec that is submitted"),
    "trainyard/client/program_spec.py": ({"script"}, "a spec that is submitted"),
    "trainyard/cli/jobs.py": ({"comm_check"}, "the type of an event"),
    "service/plugins/openai/spec.py": ({"causal_lm"}, "a spec that is submitted"),
    "trainyard/contract/wire/worker_events.py": ({"comm_check"}, "the type of an event"),
    "service/scheduler/slurm/scheduler.py": ({"script"}, "the batch script of a request"),
    "service/scheduler/slurm/submit.py": ({"script"}, "the batch script of a request"),
    "worker/comm_check/run.py": ({"comm_check"}, "the object of an artifact, and the type of an event"),
    "trainyard/contract/spec/forks.py": ({"ddp", "fsdp"}, "sections of the spec"),
    "trainyard/contract/spec/ineffective_fields.py": ({"ddp", "fsdp"}, "sections of the spec"),
    "trainyard/contract/spec/field_advice.py": ({"bf16", "fp16", "fp8"}, "fields of other programs' configurations"),
    "service/plugins/planner/build_plan.py": ({"fsdp"}, "a section of the spec"),
    "worker/engine/flops.py": ({"bf16", "fp16", "fp8", "fp32"}, "the number formats of GPUs"),
}
"""Literals that only look like the name of a kind, with their meaning."""

BOUNDS = {"task": (0, 0), "strategy": (0, 0), "precision": (0, 0)}
"""The literals of each kind outside of its registry, and their files. A change may only lower them."""


class Literals(NamedTuple):
    """The strings of a module that may name a kind, and where."""

    compared_with_precision: dict[ast.Constant, bool]

    def of(self, kind: str) -> Iterator[ast.Constant]:
        for constant, compared in self.compared_with_precision.items():
            if constant.value in NAMES[kind] and (compared or kind != "precision" or constant.value not in DATA_TYPES):
                yield constant


def literals_of(tree: ast.Module) -> Literals:
    """Return the strings of a module without docstrings and examples of documentation."""
    left_out = {id(inner) for node in ast.walk(tree) if _is_prose(node) for inner in ast.walk(node)}
    compared = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Dict | ast.Assign | ast.keyword) and _names_precision(node)
        for inner in ast.walk(node)
    }
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return Literals({node: id(node) in compared for node in strings if id(node) not in left_out})


def _is_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.keyword):
        return node.arg == "examples"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "example"


def _names_precision(node: ast.Compare | ast.Dict | ast.Assign | ast.keyword) -> bool:
    match node:
        case ast.keyword():
            return node.arg == "precision"
        case ast.Assign():
            return isinstance(node.targets[0], ast.Subscript) and _is_precision(node.targets[0].slice)
        case ast.Dict():
            return any(key is not None and _is_precision(key) for key in node.keys)
    return any(_is_precision(side) for side in (node.left, *node.comparators))


def _is_precision(node: ast.expr) -> bool:
    match node:
        case ast.Attribute():
            return node.attr == "precision"
        case ast.Name():
            return node.id == "precision"
        case ast.Constant():
            return node.value == "precision"
    return False


@cache
def _modules() -> list[tuple[str, Literals]]:
    """Return the modules of the product that contain the name of any kind, with their literals."""
    named = re.compile("|".join(f"[\"']{name}[\"']" for names in NAMES.values() for name in sorted(names)))
    result = []
    for path in sorted(
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if GENERATED not in path.parts
    ):
        source = path.read_text()
        if named.search(source):
            result.append((path.relative_to(ROOT).as_posix(), literals_of(ast.parse(source))))
    return result


def occurrences(kind: str) -> list[tuple[str, int, str]]:
    """Return the file, line and name of each literal of a kind outside of its registry."""
    return [
        (file, node.lineno, str(node.value))
        for file, literals in _modules()
        if file not in REGISTRIES[kind]
        for node in literals.of(kind)
        if node.value not in EXCEPTIONS.get(file, (frozenset(), ""))[0]
    ]


@pytest.mark.parametrize("kind", NAMES)
def test_kinds_are_named_in_their_registry_only(kind: str) -> None:
    matches = occurrences(kind)
    counts = len(matches), len({file for file, _, _ in matches})
    listing = "\n".join(f"{file}:{line}: {name}" for file, line, name in matches)
    assert counts == BOUNDS[kind], f"decide by a fact of the record, or lower the bound:\n{listing}"


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_each_exception_is_needed(name: str) -> None:
    literals = literals_of(ast.parse((ROOT / name).read_text()))
    assert EXCEPTIONS[name][0] <= {str(node.value) for node in literals.compared_with_precision}


def test_examples_and_other_data_types_are_no_kinds() -> None:
    tree = ast.parse('"""ddp"""\na = Field(examples=["ddp"])\nb = dtype == "bf16"\nc = precision == "bf16"\nd = "ddp"')
    literals = literals_of(tree)
    assert [node.lineno for node in literals.of("strategy")] == [5]
    assert [node.lineno for node in literals.of("precision")] == [4]


@pytest.mark.parametrize(
    ("script", "pattern", "fact"),
    [
        ("model_use.js", r"const TASKS = (\[.*?\])", lambda kind: kind.in_loop),
        ("job.js", r"const TEXT_TASKS = new Set\((\[.*?\])", lambda kind: kind.reads_texts),
        ("chart_list.js", r"const STEPLESS = (\[.*?\])", lambda kind: not kind.in_loop),
        ("code_upload.js", r"runsCode: (\[.*?\])", lambda kind: kind.code_field is not None),
    ],
)
def test_scripts_of_pages_list_the_same_tasks(script: str, pattern: str, fact: Callable[[TaskKind], bool]) -> None:
    match = re.search(pattern, (ROOT / "service/web/static" / script).read_text(), re.DOTALL)
    assert match is not None
    assert tuple(re.findall(r'"(\w+)"', match[1])) == tasks_with(fact)
