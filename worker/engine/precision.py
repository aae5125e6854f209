"""In what numbers the forward pass computes, and loss scaling where they need it."""

import contextlib
from contextlib import AbstractContextManager

import torch

from trainyard.contract.spec.sections import Amp
from trainyard.contract.spec.training_spec import TrainingSpec

COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of the forward pass where it is not fp32."""


class Precision:
    """Parameters, gradients and optimizer state stay in fp32; autocast chooses the types of the forward pass.

    Without `autocast` the model itself does: a sharded one casts its parameters as it gathers them.
    """

    def __init__(self, name: str, amp: Amp, device: torch.device, *, autocast: bool = True) -> None:
        self._dtype = COMPUTE_DTYPE.get(name) if autocast else None
        self._device = device
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
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
        """Update, unless the scaler found an infinity in this optimizer's gradients. They are summed over the ranks
        before: all find it."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)

    def update(self) -> None:
        """Once a step, after all optimizers: halve the scale where any of them found an infinity."""
        if self.scaler is not None:
            self.scaler.update()


def set_tf32(spec: TrainingSpec, device: torch.device) -> None:
    """TF32 for fp32 products and convolutions exactly where the spec asks for it: torch's own defaults differ."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = spec.tf32
        torch.backends.cudnn.allow_tf32 = spec.tf32
