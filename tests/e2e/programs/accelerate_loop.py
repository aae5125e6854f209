"""accelerate with one of its trackers, and its states in a relative folder."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from gate import pass_gate

parser = argparse.ArgumentParser()
parser.add_argument("--log_with", default="tensorboard")
parser.add_argument("--output_dir", default="results")
arguments = parser.parse_args()
accelerator = Accelerator(log_with=arguments.log_with, project_dir=arguments.output_dir)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, batches = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=1)
)
accelerator.init_trackers("digits", config={"lr": 0.01})
start, last = 0, Path(arguments.output_dir, "step")
if last.exists():
    accelerator.load_state(f"{arguments.output_dir}/state")
    start = int(last.read_text())
for step, batch in enumerate(accelerator.skip_first_batches(batches, start), start + 1):
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item()}, step=step)
    if step % 10 == 0:
        accelerator.save_state(f"{arguments.output_dir}/state")
        last.write_text(str(step))
    pass_gate(step)
accelerator.end_training()
print("steps of this start:", 40 - start)
