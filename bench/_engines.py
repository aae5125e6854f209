"""The engines that `bench.engine` compares, on the same model, batches and optimizer.

Each trains a new model for `workload.steps` steps and calls `on_step` at the start of each step.
"""

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench._trainyard_engine import trainyard
from bench._workload import CLIP, LEARNING_RATE, LOG_EVERY, StepCallback, Workload, make_optimizer


def bare_loop(workload: Workload, on_step: StepCallback) -> None:
    """Train in a short loop of plain torch."""
    model = workload.model().to(workload.device)
    if workload.compiled:
        model.compile()
    if workload.distributed:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    for step, batch in zip(range(1, workload.steps + 1), workload.batches(), strict=False):
        on_step()
        optimizer.zero_grad(set_to_none=True)
        with workload.autocast():
            loss = model(*batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()


def with_accelerate(workload: Workload, on_step: StepCallback) -> None:
    """Train in the loop that accelerate documents."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = workload.model()
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    for step, batch in zip(range(1, workload.steps + 1), workload.batches(), strict=False):
        on_step()
        loss = model(*batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            loss.item()
    accelerator.free_memory()


def with_fabric(workload: Workload, on_step: StepCallback) -> None:
    """Train in the loop that Lightning Fabric documents."""
    from lightning_fabric import Fabric

    strategy = "ddp" if workload.distributed else "auto"
    fabric = Fabric(accelerator="cpu", devices=workload.ranks.world, strategy=strategy)
    fabric.launch()
    model = workload.model()
    model, optimizer = fabric.setup(model, make_optimizer(model))
    for step, batch in zip(range(1, workload.steps + 1), workload.batches(), strict=False):
        on_step()
        optimizer.zero_grad(set_to_none=True)
        loss = model(*batch)["loss"]
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP, error_if_nonfinite=False)
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()


def with_trainer(workload: Workload, on_step: StepCallback) -> None:
    """Train with the Hugging Face Trainer, without output and checkpoints."""
    from transformers import Trainer as HfTrainer
    from transformers import TrainerCallback, TrainingArguments

    class StepStart(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            on_step()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=workload.device.type == "cpu",
            bf16=workload.bf16,
            torch_compile=workload.compiled,
            max_steps=workload.steps,
            per_device_train_batch_size=workload.local_batch_size,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            ddp_backend="gloo" if workload.distributed else None,
            ddp_find_unused_parameters=False,
            dataloader_drop_last=True,
            dataloader_pin_memory=workload.device.type == "cuda",
        )
        rows = [
            {"batch": tokens} for (tokens,) in (workload.rows[index] for index in range(min(2048, len(workload.rows))))
        ]
        trainer = HfTrainer(workload.model(), arguments, train_dataset=rows, callbacks=[StepStart()])
        with open("/dev/null", "w") as null, contextlib.redirect_stdout(null):
            trainer.train()


ENGINES: dict[str, Callable[[Workload, StepCallback], None]] = {
    "trainyard": trainyard,
    "bare loop": bare_loop,
    "bare loop, repeated": bare_loop,
    "accelerate": with_accelerate,
    "Fabric": with_fabric,
    "Trainer": with_trainer,
}
