"""Operations of our own: where the reference runs, and where Triton may."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from bench._bill import counting
from worker.core import kernels


@pytest.fixture
def triton(monkeypatch, tmp_path):
    """Let all that Triton needs be there."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(kernels.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(kernels.shutil, "which", lambda name: "/usr/bin/gcc")
    monkeypatch.delenv("CC", raising=False)
    kernels.has_triton.cache_clear()
    yield tmp_path
    kernels.has_triton.cache_clear()


def test_triton_needs_a_compiler_and_headers(monkeypatch, triton):
    assert kernels.has_triton()
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    kernels.has_triton.cache_clear()
    assert not kernels.has_triton()
    monkeypatch.setenv("CC", "/opt/cc")
    kernels.has_triton.cache_clear()
    assert kernels.has_triton()
    (triton / "Python.h").unlink()
    kernels.has_triton.cache_clear()
    assert not kernels.has_triton()


def test_an_operation_runs_its_reference_and_counts_as_one_kernel():
    def halve(values: torch.Tensor) -> None:
        values.copy_(values + values).mul_(0.25)

    operation = kernels.define_kernel("halve_for_test_(Tensor(a!) values) -> ()", halve)
    values = torch.ones(3)
    operation(values)
    assert values.tolist() == [0.5, 0.5, 0.5]
    with counting() as bill, bill.phase("halve"):
        operation(torch.ones(3))
    # The tensor is created by another kernel.
    assert bill.phases["halve"].launches == 2
    with torch.device("meta"):
        operation(torch.ones(3))


@pytest.mark.cpu_seconds(6)
def test_triton_is_not_imported_with_the_worker():
    code = (
        "import sys, worker.engine.optim, worker.engine.frozen_base, worker.tasks.language_loss; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] == 'triton' or name.endswith('_triton')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def _double(values: torch.Tensor, low: torch.Tensor | None) -> None:
    values.mul_(2)


def _triple(values: torch.Tensor, low: torch.Tensor | None) -> None:
    values.mul_(3)


def _fail(values: torch.Tensor, low: torch.Tensor | None) -> None:
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("launch", "calls", "message"),
    [
        (_double, 3, ""),
        (_triple, 1, "plain torch has other results"),
        (_fail, 1, "RuntimeError: no compiler"),
        (None, 0, ""),
    ],
)
def test_kernel_is_used_only_if_it_agrees(monkeypatch, caplog, launch, calls, message):
    used = []

    def counted(values: torch.Tensor, low: torch.Tensor | None) -> None:
        used.append(len(values))
        launch(values, low)

    monkeypatch.setattr(kernels, "_launcher", lambda module: launch and counted)
    kernel = kernels.CheckedKernel("double_", _double, "a.module", lambda values, low: (values[:2], low))
    values = torch.ones(5)
    kernel(values, None)
    kernel(values, None)
    assert values.tolist() == [4.0] * 5
    assert used == [2, 5, 5][:calls]
    assert message in caplog.text


def test_each_combination_of_types_is_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(kernels, "_launcher", lambda module: _double)
    kernel = kernels.CheckedKernel("double_", _double, "a.module", lambda *args: compared.append(args) or args)
    for values, low in ((torch.ones(2), None), (torch.ones(3), None), (torch.ones(2).bfloat16(), None)):
        kernel(values, low)
    kernel(torch.ones(2), torch.ones(2))
    assert len(compared) == 3


def test_values_that_show_no_difference_choose_no_kernel(monkeypatch):
    monkeypatch.setattr(kernels, "_launcher", lambda module: _triple)
    kernel = kernels.CheckedKernel("double_", _double, "a.module", lambda *args: args)
    empty, values = torch.ones(0), torch.ones(2)
    kernel(empty, None)
    kernel(values, None)
    assert values.tolist() == [2.0, 2.0]
