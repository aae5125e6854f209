"""What `bench.engine` gives every contender: the same model, data and setting."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.core.distributed import Ranks
from worker.data.token_rows import RowExamples
from worker.tasks.base import Task
from worker.tasks.select import select_task

LOG_EVERY = 10
CLIP = 1.0
RATE = 1e-3

Accelerator = Literal["cpu", "cuda"]

Tick = Callable[[], None]
"""Called at the start of each step."""


@dataclass
class Bench:
    """One setting on one rank."""

    document: dict[str, Any]
    task: Task
    ranks: Ranks
    steps: int
    service_url: str
    compiled: bool = False

    @property
    def share(self) -> int:
        """This rank's examples of an update."""
        return int(self.document["batch"]["size"]) // self.ranks.world

    @property
    def together(self) -> bool:
        return self.ranks.world > 1

    @property
    def low(self) -> bool:
        """Whether the forward computes in bf16."""
        return self.document["precision"] == "bf16"

    @property
    def device(self) -> torch.device:
        return self.ranks.device

    def spec(self) -> TrainingSpec:
        """What ours trains by."""
        run = {"steps": self.steps, "gpus": self.ranks.world, "compile": self.compiled}
        return resolve(parse_spec({**self.document, **run}), Site("cuda" if self.device.type == "cuda" else "cpu"))

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.low else contextlib.nullcontext()

    def model(self) -> nn.Module:
        """A fresh one, called with a batch: the loss is the mean over the rank's tokens."""
        if self.document["model"]["source"] == "hf":
            return HfLoss(self.document["model"]["path"])
        return TaskLoss(self.task, self.task.weight(np.arange(self.share)))

    @cached_property
    def rows(self) -> TensorDataset:
        """The training examples, each as long as the others."""
        examples = self.task.examples
        if not isinstance(examples, RowExamples):
            return TensorDataset(*(tensor[: examples.train] for tensor in examples.tensors))
        lengths = examples.rows.lengths[: examples.train]
        return TensorDataset(examples.train_batch(np.flatnonzero(lengths == lengths.max()), torch.device("cpu"))[0])

    def batches(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Endless batches of this rank, as people load them."""
        sampler: DistributedSampler[Any] = DistributedSampler(self.rows, self.ranks.world, self.ranks.rank)
        pinned = self.device.type == "cuda"
        loader = DataLoader(self.rows, self.share, sampler=sampler, drop_last=True, pin_memory=pinned)
        while True:
            for batch in loader:
                yield tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)


class TaskLoss(nn.Module):
    """Model and loss of our own task in one module."""

    def __init__(self, task: Task, divisor: float) -> None:
        super().__init__()
        self.inner = task.build_model()
        self._task = task
        self._divisor = divisor

    def forward(self, batch: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self._task.loss_sum(self.inner, (batch,)) / self._divisor}


class HfLoss(nn.Module):
    """A model of transformers with its own loss."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.inner = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def forward(self, batch: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.inner(input_ids=batch, labels=batch, use_cache=False).loss}


def spec_of(document: dict[str, Any], accelerator: Accelerator) -> TrainingSpec:
    """The spec as one process has it."""
    return resolve(parse_spec({**document, "steps": 1, "gpus": 1, "strategy": "single"}), Site(accelerator))


def task_of(document: dict[str, Any], accelerator: Accelerator) -> Task:
    """The task with its data, loaded once for all."""
    return select_task(spec_of(document, accelerator))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The one that all use."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
