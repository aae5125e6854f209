"""The loops that `bench.engine` compares: the same model, batches and optimizer under different engines.

A contender trains `steps` updates from a fresh model and calls `tick` at the start of each.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from trainyard.contract.layout import AttemptLayout, RunLayout
from trainyard.contract.resolve import Site, resolve
from trainyard.contract.spec import TrainingSpec, parse_spec
from worker.boundary import Boundary
from worker.distributed import Ranks
from worker.engine.trainer import Trainer
from worker.reporter import SilentReporter, SpoolReporter
from worker.service_client import ServiceClient
from worker.signals import StopSignal
from worker.spool_sender import SpoolSender
from worker.tasks.base import Task
from worker.tasks.select import select_task

LOG_EVERY = 10
CLIP = 1.0
RATE = 1e-3

Tick = Callable[[], None]


@dataclass(frozen=True)
class Bench:
    """What every contender gets."""

    document: dict[str, Any]
    task: Task
    ranks: Ranks
    steps: int
    service_url: str

    @property
    def batch(self) -> int:
        """Examples of one update, over all ranks."""
        return int(self.document["batch"]["size"])

    @property
    def share(self) -> int:
        return self.batch // self.ranks.world

    @property
    def together(self) -> bool:
        return self.ranks.world > 1

    def spec(self) -> TrainingSpec:
        return resolve(parse_spec({**self.document, "steps": self.steps, "gpus": self.ranks.world}), Site())

    def loader(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Endless batches of this rank, as people load them."""
        rows = TensorDataset(*(tensor[: self.task.examples.train] for tensor in self.task.examples.tensors))
        sampler = DistributedSampler(rows, self.ranks.world, self.ranks.rank)
        while True:
            yield from map(tuple, DataLoader(rows, self.share, sampler=sampler, drop_last=True))


class LossModule(nn.Module):
    """Model and loss in one module, as Trainer wants them; the loss is the mean over the rank's tokens."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.inner = bench.task.build_model()
        self._bench = bench
        self._divisor = bench.task.weight(_first(bench.share))

    def forward(self, batch: torch.Tensor, target: torch.Tensor | None = None, **_: Any) -> dict[str, torch.Tensor]:
        tensors = (batch,) if target is None else (batch, target)
        return {"loss": self._bench.task.loss_sum(self.inner, tensors) / self._divisor}


def _first(count: int) -> Any:
    import numpy as np

    return np.arange(count)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)


def bare(bench: Bench, tick: Tick) -> None:
    """A loop of ten lines with torch alone."""
    model: nn.Module = LossModule(bench)
    if bench.together:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = _optimizer(model)
    for step, batch in zip(range(1, bench.steps + 1), bench.loader(), strict=False):
        tick()
        optimizer.zero_grad(set_to_none=True)
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
    model = LossModule(bench)
    model, optimizer = accelerator.prepare(model, _optimizer(model))
    for step, batch in zip(range(1, bench.steps + 1), bench.loader(), strict=False):
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
    model = LossModule(bench)
    model, optimizer = fabric.setup(model, _optimizer(model))
    for step, batch in zip(range(1, bench.steps + 1), bench.loader(), strict=False):
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

    rows = [
        dict(zip(("batch", "target"), row, strict=False))
        for row in TensorDataset(*(tensor[:2048] for tensor in bench.task.examples.tensors))
    ]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
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
            dataloader_pin_memory=False,
        )
        trainer = HfTrainer(LossModule(bench), arguments, train_dataset=rows, callbacks=[Ticks()])
        with _quiet():
            trainer.train()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


class _Ticking(Boundary):
    """What the ranks agree on between steps, as in a real run, and the clock."""

    def __init__(self, tick: Tick, ranks: Ranks, stop: StopSignal) -> None:
        super().__init__(ranks, stop)
        self._tick = tick

    def agreed(self) -> bool:
        self._tick()
        return super().agreed()


def trainyard(bench: Bench, tick: Tick) -> None:
    """Our engine as a job runs it: spool on disk, sender thread, stop flag, metrics every ten steps."""
    spec = bench.spec()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        run = RunLayout(Path(folder) / "job")
        attempt = run.attempt(1)
        attempt.root.mkdir(parents=True)
        reporter = _reporter(bench, attempt)
        checkpoints = _NoCheckpoints()
        trainer = Trainer(
            spec,
            bench.task,
            bench.ranks,
            reporter=reporter,
            boundary=_Ticking(tick, bench.ranks, StopSignal(attempt.stop_request)),
            checkpoints=checkpoints,  # type: ignore[arg-type]
        )
        trainer.run()
        reporter.close(0.5)


class _NoCheckpoints:
    """No contender writes any."""

    start_step = last_step = saved_ranks = 0

    def due(self, step: int, total_steps: int) -> bool:
        return False

    def finish(self) -> None:
        return


def _reporter(bench: Bench, attempt: AttemptLayout) -> SilentReporter | SpoolReporter:
    if not bench.ranks.first:
        return SilentReporter()
    sender = SpoolSender(attempt, 1, lambda: ServiceClient(bench.service_url, "a1", "token"))
    return SpoolReporter(attempt, 1, 0, sender)


CONTENDERS: dict[str, Callable[[Bench, Tick], None]] = {
    "trainyard": trainyard,
    "bare loop": bare,
    "accelerate": with_accelerate,
    "Fabric": with_fabric,
    "Trainer": with_trainer,
}


def spec_of(document: dict[str, Any]) -> TrainingSpec:
    """The spec as one process on a machine without GPUs has it."""
    return resolve(parse_spec({**document, "steps": 1, "gpus": 1, "strategy": "single"}), Site())


def task_of(document: dict[str, Any]) -> Task:
    """The task with its data, loaded once for all."""
    return select_task(spec_of(document))
