"""In the style of timm's script: defaults from a file, and a folder named after the time and the model."""

import argparse
import csv
import os
import time
from pathlib import Path

import torch
import yaml

config = argparse.ArgumentParser(add_help=False)
config.add_argument("-c", "--config", type=Path)
parser = argparse.ArgumentParser()
parser.add_argument("data_dir", type=Path)
parser.add_argument("--model", default="small")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--output", type=Path, default="output/train")
parser.add_argument("--experiment", default="")
arguments, others = config.parse_known_args()
if arguments.config:
    parser.set_defaults(**yaml.safe_load(arguments.config.read_text()))
arguments = parser.parse_args(others)

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
rows = sum(1 for _ in (arguments.data_dir / "train.jsonl").open())
folder = arguments.output / (arguments.experiment or f"{time.strftime('%Y%m%d-%H%M%S')}-{arguments.model}")
if rank == 0:
    folder.mkdir(parents=True)
    (folder / "args.yaml").write_text(yaml.safe_dump({"model": arguments.model, "epochs": arguments.epochs}))
for epoch in range(arguments.epochs):
    loss = torch.ones(1) / (epoch + 1)
    if ranks > 1:
        torch.distributed.all_reduce(loss)
    if rank == 0:
        with (folder / "summary.csv").open("a") as file:
            csv.writer(file).writerow([epoch, loss.item()])
        torch.save({"epoch": epoch}, folder / f"checkpoint-{epoch}.pth.tar")
if rank == 0:
    print(f"*** {arguments.model}: {rows} rows, {arguments.epochs} epochs on {ranks}", flush=True)
if ranks > 1:
    torch.distributed.destroy_process_group()
