"""A loop of 40 steps with a checkpoint in a relative folder, alone or with other ranks."""

import argparse
import contextlib
import os
import sys
from pathlib import Path

import torch
from gate import pass_gate

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default="out")
parser.add_argument("--tracker", choices=["mlflow", "wandb", "tensorboard", "none"], default="none")
parser.add_argument("--steps", type=int, default=40)
arguments = parser.parse_args()

rank = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    # One write, so that the lines of several ranks do not mix.
    sys.stdout.write(f"rank {rank} of {torch.distributed.get_world_size()}\n")
    sys.stdout.flush()
arguments.out.mkdir(parents=True, exist_ok=True)
checkpoint = arguments.out / f"rank{rank}.pt"
state = torch.load(checkpoint) if checkpoint.exists() else {"step": 0}

log = print
if rank > 0 or arguments.tracker == "none":
    log = lambda step: None  # noqa: E731
elif arguments.tracker == "mlflow":
    import mlflow

    log = lambda step: mlflow.log_metric("loss", 1 / step, step=step)  # noqa: E731
elif arguments.tracker == "wandb":
    import wandb

    run = wandb.init(project="digits", name="first-try")
    log = lambda step: run.log({"loss": 1 / step}, step=step)  # noqa: E731
else:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter()
    log = lambda step: writer.add_scalar("loss", 1 / step, step)  # noqa: E731

for step in range(state["step"] + 1, arguments.steps + 1):
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(torch.ones(1))
    log(step)
    if step % 10 == 0:
        torch.save({"step": step}, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)
    if rank == 0:
        pass_gate(step)
if rank == 0:
    print("steps of this start:", arguments.steps - state["step"])
with contextlib.suppress(RuntimeError, AssertionError, ValueError):
    torch.distributed.destroy_process_group()
sys.stdout.flush()
