"""The loops that `bench.engine` compares: the same model, batches and optimizer under different engines.

A contender trains `steps` updates from a fresh model and calls `tick` at the start of each.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench._bench import CLIP, LOG_EVERY, RATE, Bench, Tick, optimizer_of
from bench._ours import trainyard


def bare(bench: Bench, tick: Tick) -> None:
    """A loop of ten lines with torch alone."""
    model = bench.model().to(bench.device)
    if bench.compiled:
        model.compile()
    if bench.together:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = optimizer_of(model)
    for step, batch in zip(range(1, bench.steps + 1), bench.batches(), strict=False):
        tick()
        optimizer.zero_grad(set_to_none=True)
        with bench.autocast():
            loss = model(*batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()


def with_accelerate(bench: Bench, tick: Tick) -> None:
    """accelerate's documented loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = bench.model()
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    for step, batch in zip(range(1, bench.steps + 1), bench.batches(), strict=False):
        tick()
        loss = model(*batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            loss.item()
    accelerator.free_memory()


def with_fabric(bench: Bench, tick: Tick) -> None:
    """Lightning Fabric's documented loop."""
    from lightning_fabric import Fabric

    strategy = "ddp" if bench.together else "auto"
    fabric = Fabric(accelerator="cpu", devices=bench.ranks.world, strategy=strategy)
    fabric.launch()
    model = bench.model()
    model, optimizer = fabric.setup(model, optimizer_of(model))
    for step, batch in zip(range(1, bench.steps + 1), bench.batches(), strict=False):
        tick()
        optimizer.zero_grad(set_to_none=True)
        loss = model(*batch)["loss"]
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP, error_if_nonfinite=False)
        optimizer.step()
        if step % LOG_EVERY == 0:
            loss.item()


def with_trainer(bench: Bench, tick: Tick) -> None:
    """Hugging Face Trainer, quiet and without checkpoints."""
    from transformers import Trainer as HfTrainer
    from transformers import TrainerCallback, TrainingArguments

    class Ticks(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            tick()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=bench.device.type == "cpu",
            bf16=bench.low,
            torch_compile=bench.compiled,
            max_steps=bench.steps,
            per_device_train_batch_size=bench.share,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            logging_steps=LOG_EVERY,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            ddp_backend="gloo" if bench.together else None,
            ddp_find_unused_parameters=False,
            dataloader_drop_last=True,
            dataloader_pin_memory=bench.device.type == "cuda",
        )
        rows = [{"batch": tokens} for (tokens,) in (bench.rows[index] for index in range(min(2048, len(bench.rows))))]
        trainer = HfTrainer(bench.model(), arguments, train_dataset=rows, callbacks=[Ticks()])
        with _quiet():
            trainer.train()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


CONTENDERS: dict[str, Callable[[Bench, Tick], None]] = {
    "trainyard": trainyard,
    "bare loop": bare,
    "bare, again": bare,
    "accelerate": with_accelerate,
    "Fabric": with_fabric,
    "Trainer": with_trainer,
}
