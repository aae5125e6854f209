"""Pools of processes by each start method, and ranks that the program starts itself."""

import multiprocessing
import os

import torch


def square(number):
    return number * number


def add(rank, store):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    if rank == 0:
        print("sum", total.item(), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(4)))
    torch.multiprocessing.spawn(add, (os.path.abspath("store"),), nprocs=2)
