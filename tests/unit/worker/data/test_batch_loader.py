"""Loader processes prepare batches in order, leave the rank's generators alone, and pass on errors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.wait import wait_until
from worker.data.batch_loader import LoaderProcesses
from worker.data.examples import Examples


class Files(Examples):
    def train_batch(self, indices, device):
        if 5 in indices:
            raise ValueError("image 5 cannot be decoded")
        return torch.from_numpy(indices), torch.full((len(indices),), os.getpid()), torch.rand(1)


def batches(*lists):
    return [np.array(one, dtype=np.int64) for one in lists]


@pytest.fixture
def prepare():
    opened = []

    def start(order, processes=2):
        opened.append(LoaderProcesses(Files((), 6, 0), order, processes=processes, seed=1))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_batches_come_in_order_from_other_processes(prepare):
    order = batches([2, 0], [1], [4, 3], [0])
    loaders = prepare(order)
    loaded = [loaders.next(indices) for indices in order]
    assert [numbers.tolist() for numbers, _, _ in loaded] == [one.tolist() for one in order]
    processes = {int(pid[0]) for _, pid, _ in loaded}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_draws_are_those_of_the_batch_and_not_of_the_rank(prepare):
    order = batches([0], [1])
    before = torch.get_rng_state()
    several, alone = prepare(order), prepare(batches([1]), processes=1)
    draws = [float(several.next(indices)[2]) for indices in order]
    assert draws[1] == float(alone.next(order[1])[2])
    assert draws[0] != draws[1]
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_in_a_process_is_raised(prepare):
    (order,) = batches([5])
    with pytest.raises(ValueError, match="image 5 cannot be decoded"):
        prepare([order]).next(order)


ABANDON = """
import os, signal
from tests.unit.worker.data.test_batch_loader import Files, batches
from worker.data.batch_loader import LoaderProcesses
order = batches([1], [2])
loaders = LoaderProcesses(Files((), 6, 0), order, processes=1, seed=1)
_, pid, _ = loaders.next(order[0])
os.kill(int(pid[0]), signal.SIGSTOP)
print(int(pid[0]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.cpu_seconds(8)
def test_stopped_process_ends_with_its_rank():
    rank = subprocess.run([sys.executable, "-c", ABANDON], stdout=subprocess.PIPE, text=True, check=False)
    stat = Path(f"/proc/{int(rank.stdout)}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
