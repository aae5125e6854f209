"""`dp`: one process with a thread for each GPU. For comparison with `ddp`, which replaced it."""

from dataclasses import dataclass

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.core.distributed import Ranks
from worker.core.errors import RefusedError
from worker.engine.precision import COMPUTE_DTYPE
from worker.engine.strategies.base import ParallelModel


class _Cast(nn.Module):
    """Enters autocast in each of DataParallel's threads, since autocast is local to a thread."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype | None, device: torch.device) -> None:
        super().__init__()
        self.inner = inner
        self._dtype = dtype
        self._type = device.type

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._type, dtype=self._dtype, enabled=self._dtype is not None):
            output: torch.Tensor = self.inner(*args)
        return output


@dataclass(frozen=True)
class DataParallelModel(ParallelModel):
    """A model in DataParallel; evaluation uses the first GPU only."""

    @property
    def evaluation_module(self) -> nn.Module:
        inner = self.forward.module
        assert isinstance(inner, nn.Module)
        return inner

    @property
    def dry_run_module(self) -> nn.Module:
        return self.forward


def wrap_dp(spec: TrainingSpec, model: nn.Module, ranks: Ranks) -> DataParallelModel:
    """Wrap the model: each forward replicates it over the job's GPUs and gathers the outputs on the first.

    Raises:
        RefusedError: This node has fewer GPUs than the job; without any, DataParallel would silently do nothing.
    """
    available = torch.cuda.device_count() if ranks.device.type == "cuda" else 0
    if available < spec.gpus:
        raise RefusedError(f"strategy `dp` needs its {spec.gpus} GPUs in one process, and this node has {available}")
    cast = _Cast(model, COMPUTE_DTYPE.get(spec.precision), ranks.device)
    return DataParallelModel(nn.DataParallel(cast, device_ids=list(range(spec.gpus))), model)
