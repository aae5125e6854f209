"""The engines that `bench.engine` compares, on the same model, batches and optimizer.

Each trains a new model for `workload.steps` steps and calls `on_step` at the start of each step.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.support.no_checkpoints import NoCheckpoints
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import parse_spec
from worker.core.distributed import Ranks
from worker.core.stop_signal import StopSignal
from worker.engine.step_sync import StepSync
from worker.engine.trainer import Trainer
from worker.reporting.reporter import NullReporter, SpoolReporter
from worker.reporting.service_client import ServiceClient
from worker.reporting.spool_sender import SpoolSender
from worker.tasks.base import Task

LOG_EVERY = 10
CLIP = 1.0
LEARNING_RATE = 1e-3

StepCallback = Callable[[], None]
"""Called at the start of each step."""


@dataclass
class Workload:
    """The training of one rank: model, data and optimizer, the same for each engine."""

    document: dict[str, Any]
    task: Task
    ranks: Ranks
    steps: int
    service_url: str

    @property
    def local_batch_size(self) -> int:
        """This rank's examples in one step."""
        return int(self.document["batch"]["size"]) // self.ranks.world

    @property
    def distributed(self) -> bool:
        return self.ranks.world > 1

    @cached_property
    def rows(self) -> TensorDataset:
        """The training examples."""
        examples = self.task.examples
        return TensorDataset(*(tensor[: examples.train] for tensor in examples.tensors))

    def model(self) -> nn.Module:
        """Return a new model; called with a batch, it returns the mean loss over this rank's tokens."""
        return TaskModelWithLoss(self.task, self.task.weight(np.arange(self.local_batch_size)))

    def batches(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield this rank's batches without end, from a plain `DataLoader`."""
        sampler: DistributedSampler[Any] = DistributedSampler(self.rows, self.ranks.world, self.ranks.rank)
        loader = DataLoader(self.rows, self.local_batch_size, sampler=sampler, drop_last=True)
        while True:
            yield from loader


class TaskModelWithLoss(nn.Module):
    """A task's model and its loss in one module."""

    def __init__(self, task: Task, divisor: float) -> None:
        super().__init__()
        self.inner = task.build_model()
        self._task = task
        self._divisor = divisor

    def forward(self, *batch: torch.Tensor, **named: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._task.loss_sum(self.inner, batch or (named["batch"],)) / self._divisor}


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the fused AdamW that each engine uses."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)


def trainyard(workload: Workload, on_step: StepCallback) -> None:
    """Train as in a job, with the spool, its sender thread, synchronized stop requests and metrics every ten steps, but
    without checkpoints."""

    class TimedStepSync(StepSync):
        def should_stop(self) -> bool:
            on_step()
            return super().should_stop()

    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        attempt = RunLayout(Path(folder) / "job").attempt("1")
        attempt.root.mkdir(parents=True)
        reporter: NullReporter | SpoolReporter = NullReporter()
        if workload.ranks.is_rank_0:
            sender = SpoolSender(attempt, 1, lambda: ServiceClient(workload.service_url, "a1", "token"))
            reporter = SpoolReporter(attempt, 1, 0, sender)
        run = {"steps": workload.steps, "gpus": workload.ranks.world}
        Trainer(
            resolve(parse_spec({**workload.document, **run}), Site()),
            workload.task,
            workload.ranks,
            reporter=reporter,
            step_sync=TimedStepSync(workload.ranks, StopSignal(attempt.stop_request)),
            checkpoints=NoCheckpoints(),
        ).run()
        reporter.close(0.5)


def bare_loop(workload: Workload, on_step: StepCallback) -> None:
    """Train in a short loop of plain torch."""
    _plain_loop(workload, on_step, workload.batches())


def quick_loop(workload: Workload, on_step: StepCallback) -> None:
    """Train in the same loop with batches that are selected from tensors, which takes less time than a `DataLoader`."""
    order = torch.randint(len(workload.rows), (workload.steps, workload.local_batch_size))
    _plain_loop(workload, on_step, (tuple(tensor[rows] for tensor in workload.rows.tensors) for rows in order))


def _plain_loop(workload: Workload, on_step: StepCallback, batches: Iterator[tuple[torch.Tensor, ...]]) -> None:
    model = workload.model()
    if workload.distributed:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    for step, batch in zip(range(1, workload.steps + 1), batches, strict=False):
        on_step()
        optimizer.zero_grad(set_to_none=True)
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
            use_cpu=True,
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
            dataloader_pin_memory=False,
        )
        rows = [{"batch": tokens} for (tokens,) in (workload.rows[index] for index in range(2048))]
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
SHORT_ENGINES: dict[str, Callable[[Workload, StepCallback], None]] = {
    "trainyard": trainyard,
    "bare loop": quick_loop,
    "bare loop, repeated": quick_loop,
}
"""The same for short steps, whose time is mostly that of the loops."""
