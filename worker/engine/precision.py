"""Mixed precision (arXiv:1710.03740): the dtype of the forward pass, loss scaling, and TF32."""

import contextlib
from contextlib import AbstractContextManager

import torch

from trainyard.contract.kinds.precisions import precision_kind
from trainyard.contract.spec.sections import Amp
from trainyard.contract.spec.training_spec import TrainingSpec

COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""The dtype of the forward pass for precisions other than fp32. With fp8, only matrix products differ from bf16."""


class Precision:
    """Keeps parameters, gradients and optimizer state in fp32; autocast chooses the dtypes of the forward pass.

    Without `autocast` the model chooses them itself: a sharded model casts its parameters when it gathers them.
    """

    def __init__(self, name: str, amp: Amp, device: torch.device, *, autocast: bool = True) -> None:
        self._dtype = COMPUTE_DTYPE.get(name) if autocast else None
        self._device = device
        self.scaler: torch.amp.GradScaler | None = None
        if precision_kind(name).scales_loss:
            self.scaler = torch.amp.GradScaler(
                device.type, init_scale=amp.init_scale, growth_interval=amp.growth_interval
            )

    def autocast(self) -> AbstractContextManager[object]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self.scaler.scale(loss) if self.scaler else loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters, unless the scaler has an infinity in this optimizer's gradients. Those are already
        summed over the ranks, so all ranks decide alike."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)

    def update(self) -> None:
        """Update the loss scale, once per step after all optimizers: halve it if any gradient was infinite."""
        if self.scaler is not None:
            self.scaler.update()


def set_tf32(spec: TrainingSpec, device: torch.device) -> None:
    """Allow TF32 for fp32 products and convolutions exactly if the spec does: torch's defaults differ for the two."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = spec.tf32
        torch.backends.cudnn.allow_tf32 = spec.tf32
