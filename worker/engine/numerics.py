"""Switches of torch that change how products are computed, set before anything is."""

import torch

from trainyard.contract.spec.training_spec import TrainingSpec


def set_numerics(spec: TrainingSpec, device: torch.device) -> None:
    """TF32 for fp32 products and convolutions exactly where the spec asks for it: torch's own defaults differ."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = spec.tf32
        torch.backends.cudnn.allow_tf32 = spec.tf32
