"""A program of one's own for torchrun: a line through points, with DDP. By hand: torchrun --nproc-per-node 2 it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.script import checkpoint_dir, report, should_stop


def save(path, model, optimizer, step):
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{path}.part")
        os.replace(f"{path}.part", path)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--lr", type=float, default=0.1)
    options = options.parse_args()

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    path, step = checkpoint_dir() / "latest.pt", 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]

    while step < options.steps:
        draw = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        x = torch.randn(32, 2, generator=draw)
        loss = (model(x) - x @ torch.tensor([[1.5], [-0.5]])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        report(step, {"loss": loss.detach()}, total_steps=options.steps)
        if step % 50 == 0:
            save(path, model, optimizer, step)
        if should_stop():
            break
    save(path, model, optimizer, step)
    dist.barrier()
    dist.destroy_process_group()


main()
