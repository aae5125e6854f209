"""nanoGPT's form: global variables, a file that overrides them, and `--name=value`."""

import ast
import os
import sys
from pathlib import Path

import torch
from gate import pass_gate

out_dir = "out"
max_iters = 40
init_from = "scratch"
for argument in sys.argv[1:]:
    if "=" not in argument:
        exec(Path(argument).read_text())
        continue
    name, value = argument.removeprefix("--").split("=")
    try:
        globals()[name] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        globals()[name] = value
os.makedirs(out_dir, exist_ok=True)
iter_num = 0
model = torch.nn.Linear(4, 1)
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
start = iter_num
while iter_num < max_iters:
    iter_num += 1
    if iter_num % 10 == 0:
        state = {"model": model.state_dict(), "iter_num": iter_num}
        torch.save(state, os.path.join(out_dir, "ckpt.pt"))
        print(f"saving checkpoint to {out_dir}")
    pass_gate(iter_num)
print("steps of this start:", iter_num - start)
