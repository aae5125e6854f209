"""The Trainer of transformers with its own arguments."""

import os

import torch
from gate import pass_gate
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(super().forward(x), labels)}


class Gate(TrainerCallback):
    steps = 0

    def on_step_begin(self, arguments, state, control, **others):
        pass_gate(state.global_step)
        self.steps += 1


examples = [{"x": torch.tensor([n / 64]), "labels": torch.tensor([n * n / 4096])} for n in range(64)]
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
os.makedirs(arguments.output_dir, exist_ok=True)
gate = Gate()
trainer = Trainer(Model(), arguments, train_dataset=examples, callbacks=[gate])
trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))
print("steps of this start:", gate.steps)
