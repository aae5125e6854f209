"""Private names of dependencies: each use is listed here, so that an upgrade of a dependency shows what to check."""

import ast
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "trainyard", "worker")

_DEFERRED = "worker/deferred/recorder.py worker/deferred/replay.py"

IMPORTED = {
    "httpx._utils.URLPattern": "trainyard/contract/http.py",
    "httpx._utils.get_environment_proxies": "trainyard/contract/http.py",
    "submitit.slurm.slurm._make_sbatch_string": "service/scheduler/slurm/batch_script.py",
    "torch._C._distributed_c10d": "worker/core/flight_recorder.py",
    "torch._C._distributed_c10d.FileStore": "worker/core/group_store.py",
    "torch._C._distributed_c10d.HashStore": "worker/core/group_store.py worker/launcher/rendezvous.py",
    "torch._C._distributed_c10d.Store": "worker/core/group_store.py worker/launcher/rendezvous.py",
    "torch._C._distributed_c10d.TCPStore": "worker/core/group_store.py",
    "torch.distributed.checkpoint._state_dict_stager.StateDictStager": "worker/checkpoint/staging.py",
    "torch.distributed.checkpoint.filesystem._StorageInfo": "worker/checkpoint/tensors.py",
    "torch.utils._python_dispatch.TorchDispatchMode": "worker/deferred/recorder.py",
    "torch.utils._pytree.tree_flatten": f"{_DEFERRED} worker/deferred/recording.py",
    "torch.utils._pytree.tree_map": _DEFERRED,
}
"""Imported private names, and names of private modules: the files that import them."""

ATTRIBUTES = {
    # starlette: the parsed body, which FastAPI takes from there.
    "_json": "service/api/json_body.py",
    # uvicorn
    "_unset_keepalive_if_required": "service/api/connection_limits.py",
    # submitit
    "_get_job_id_from_submission_command": "service/scheduler/slurm/submit.py",
    "_make_submission_command": "service/scheduler/slurm/submit.py",
    # torch
    "_MEM_FORMAT_ENCODING": "worker/checkpoint/tensors.py",
    "_cdata": f"{_DEFERRED} worker/deferred/recording.py",
    "_dump_fr_trace": "worker/core/flight_recorder.py",
    "_dump_nccl_trace": "worker/core/flight_recorder.py",
    "_forward_hooks": "worker/engine/lora_linear.py worker/tasks/linear_loss.py",
    "_forward_pre_hooks": "worker/engine/lora_linear.py worker/tasks/linear_loss.py",
    "_fused_sdp_choice": "worker/engine/attention.py",
    "_is_in_bad_fork": "worker/rank/fork_server.py",
    "_monitor_workers": "worker/launcher/elastic.py",
    "_pickler": "worker/core/signed_objects.py",
    "_remaining_restarts": "worker/launcher/elastic.py",
    "_start_workers": "worker/launcher/elastic.py",
    "_unpickler": "worker/core/signed_objects.py",
    # transformers
    "_attn_implementation": "worker/tasks/hf_attention.py",
    "_can_set_attn_implementation": "worker/tasks/hf_attention.py",
    "_supports_flash_attn": "worker/tasks/hf_attention.py",
}
"""Private attributes of foreign objects: the files that use them."""

OPERATORS = ("_foreach_", "_scaled_", "_varlen_")
"""Beginnings of the names of torch's operators, all of whose names are permanent."""
PYTHON = {"os._exit", "sys._current_frames", "sys._getframe"}
"""Documented names of the standard library."""
BOUNDED = {"httpx", "starlette", "submitit", "uvicorn"}
"""Distributions that must not be newer than tested. torch and transformers are free: their private names are tried by
the tests, which run on the oldest and the newest release."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in PACKAGES:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if any(map(is_private, name.split("."))):
                    yield name


def own_names(trees: Iterable[ast.Module]) -> set[str]:
    """Return every name that the product itself defines."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def foreign_attributes(tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        name, is_assigned = None, False
        if isinstance(node, ast.Attribute):
            name = None if ast.unparse(node) in PYTHON else node.attr
            is_assigned = isinstance(node.ctx, ast.Store) and not _is_self(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            constant = node.args[1]
            name = constant.value if isinstance(constant, ast.Constant) else None
        is_foreign = is_assigned or name not in own
        if isinstance(name, str) and is_private(name) and is_foreign and not name.startswith(OPERATORS):
            yield name


def listed(table: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, file) for name, files in table.items() for file in files.split()}


@pytest.fixture(scope="module")
def uses() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The imported private names and the private attributes of foreign objects, each with the file that uses it."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files if "_sync" not in file.parts}
    own = own_names(trees.values())
    imported = {(name, file) for file, tree in trees.items() for name in imported_names(tree)}
    return imported, {(name, file) for file, tree in trees.items() for name in foreign_attributes(tree, own)}


def test_each_private_use_of_a_dependency_is_listed(
    uses: tuple[set[tuple[str, str]], set[tuple[str, str]]],
) -> None:
    imported, attributes = uses
    assert imported ^ listed(IMPORTED) == set()
    assert attributes ^ listed(ATTRIBUTES) == set()


@pytest.mark.parametrize("name", [name for name in IMPORTED if not name.startswith("torch.")])
def test_the_installed_version_has_the_name(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_a_dependency_with_private_uses_has_an_upper_bound() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    lines = (line.strip().strip(',"') for line in text.splitlines())
    bounded = {
        each.name: each
        for each in (Requirement(line.split('"')[0]) for line in lines if line.partition(">")[0] in BOUNDED)
    }
    assert bounded.keys() == BOUNDED
    for name, requirement in bounded.items():
        upper = [Version(one.version) for one in requirement.specifier if one.operator == "<"]
        assert len(upper) == 1, f"{name} needs a bound below its next minor release"
