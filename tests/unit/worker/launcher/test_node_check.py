"""What is checked on a node before its ranks start. The driver is a library that is compiled for the test."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.unit.worker.launcher.test_nodes import context, document
from trainyard.contract.layout import AttemptLayout
from worker.launcher.node_check import node_problem, reject_node
from worker.launcher.nodes import Node

DRIVER = """
#include <unistd.h>
int nvmlInit_v2(void) {{ sleep({seconds}); return {status}; }}
int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = {gpus}; return 0; }}
const char *nvmlErrorString(int status) {{ return status == 18 ? "Driver/library version mismatch" : "?"; }}
"""
ON_GPUS = document(accelerator="cuda", ranks_per_node=2)


def driver(folder: Path, *, gpus: int = 2, status: int = 0, seconds: int = 0) -> str:
    """Compile a driver and return the path of its library."""
    source, library = folder / "driver.c", folder / f"driver-{gpus}.so"
    source.write_text(DRIVER.format(gpus=gpus, status=status, seconds=seconds))
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_gpus_that_the_driver_does_not_have_are_a_problem(tmp_path: Path) -> None:
    two, one = driver(tmp_path, gpus=2), driver(tmp_path, gpus=1)
    assert node_problem(ON_GPUS, {}, two) is None
    assert node_problem(ON_GPUS, {}, one) == "its driver has 1 GPUs, and 2 are needed"
    assert node_problem(ON_GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, one) is None


def test_driver_that_does_not_work_is_a_problem_on_gpus_alone(tmp_path: Path) -> None:
    library = driver(tmp_path, status=18)
    assert node_problem(ON_GPUS, {}, library) == "the driver of its GPUs does not work: Driver/library version mismatch"
    assert node_problem(document(), {}, library) is None


def test_without_a_driver_of_nvidia_nothing_is_known() -> None:
    assert node_problem(ON_GPUS, {}, "libnvidia-ml-missing.so") is None


def test_driver_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    library, started = driver(tmp_path, seconds=60), time.monotonic()
    assert node_problem(ON_GPUS, {}, library) is None
    assert time.monotonic() - started < 20


def test_temporary_folder_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/missing")
    problem = node_problem(document(), {})
    assert problem == "its temporary folder /proc/missing cannot be written: No such file or directory"


@pytest.mark.parametrize("on_slurm", [True, False])
def test_attempt_ends_on_nodes_of_slurm_alone(on_slurm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/missing")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if on_slurm:
        monkeypatch.setenv("SLURMD_NODENAME", "n7")
    launch = document(nodes=1, ranks_per_node=1)
    record = reject_node(context(AttemptLayout(tmp_path), Node(0, 1, "127.0.0.1", "7"), launch), 1)
    if not on_slurm:
        assert record is None
        return
    assert record is not None
    assert record.failure is not None
    assert (record.reason, record.failure.node, record.failure.type) == ("node_failure", "n7", "NodeNotReady")
    assert record.failure.message.startswith("did not start on node n7: its temporary folder")
