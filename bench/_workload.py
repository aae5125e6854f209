"""The workload of `bench.engine`: model, data and optimizer, the same for each engine."""

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
LEARNING_RATE = 1e-3

Accelerator = Literal["cpu", "cuda"]

StepCallback = Callable[[], None]
"""Called at the start of each step."""


@dataclass
class Workload:
    """One setting of the benchmark, as one rank trains it."""

    document: dict[str, Any]
    task: Task
    ranks: Ranks
    steps: int
    service_url: str
    compiled: bool = False

    @property
    def local_batch_size(self) -> int:
        """This rank's examples in one step."""
        return int(self.document["batch"]["size"]) // self.ranks.world

    @property
    def distributed(self) -> bool:
        return self.ranks.world > 1

    @property
    def bf16(self) -> bool:
        """Whether the forward pass computes in bf16."""
        return self.document["precision"] == "bf16"

    @property
    def device(self) -> torch.device:
        return self.ranks.device

    def spec(self) -> TrainingSpec:
        """Return the resolved spec for Trainyard's engine."""
        run = {"steps": self.steps, "gpus": self.ranks.world, "compile": self.compiled}
        return resolve(parse_spec({**self.document, **run}), Site("cuda" if self.device.type == "cuda" else "cpu"))

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def model(self) -> nn.Module:
        """Return a new model; called with a batch, it returns the mean loss over this rank's tokens."""
        if self.document["model"]["source"] == "hf":
            return HfModelWithLoss(self.document["model"]["path"])
        return TaskModelWithLoss(self.task, self.task.weight(np.arange(self.local_batch_size)))

    @cached_property
    def rows(self) -> TensorDataset:
        """The training examples of the greatest length, so that all have one shape."""
        examples = self.task.examples
        if not isinstance(examples, RowExamples):
            return TensorDataset(*(tensor[: examples.train] for tensor in examples.tensors))
        lengths = examples.rows.lengths[: examples.train]
        return TensorDataset(examples.train_batch(np.flatnonzero(lengths == lengths.max()), torch.device("cpu"))[0])

    def batches(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield this rank's batches without end, from a plain `DataLoader`."""
        sampler: DistributedSampler[Any] = DistributedSampler(self.rows, self.ranks.world, self.ranks.rank)
        pinned = self.device.type == "cuda"
        loader = DataLoader(self.rows, self.local_batch_size, sampler=sampler, drop_last=True, pin_memory=pinned)
        while True:
            for batch in loader:
                yield tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)


class TaskModelWithLoss(nn.Module):
    """A task's model and its loss in one module."""

    def __init__(self, task: Task, divisor: float) -> None:
        super().__init__()
        self.inner = task.build_model()
        self._task = task
        self._divisor = divisor

    def forward(self, batch: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self._task.loss_sum(self.inner, (batch,)) / self._divisor}


class HfModelWithLoss(nn.Module):
    """A transformers model with its own loss."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.inner = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def forward(self, batch: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.inner(input_ids=batch, labels=batch, use_cache=False).loss}


def single_process_spec(document: dict[str, Any], accelerator: Accelerator) -> TrainingSpec:
    """Return the document's spec, resolved for one process."""
    return resolve(parse_spec({**document, "steps": 1, "gpus": 1, "strategy": "single"}), Site(accelerator))


def load_task(document: dict[str, Any], accelerator: Accelerator) -> Task:
    """Load the task and its data."""
    return select_task(single_process_spec(document, accelerator))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the fused AdamW that each engine uses."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
