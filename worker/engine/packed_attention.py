"""Chooses how attention keeps the examples of packed rows apart: by a flash kernel for sequences of several lengths, or
by a dense mask."""

import logging
from typing import Any

import torch
from torch import nn

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task
from worker.tasks.packing import KernelFit

log = logging.getLogger(__name__)

_WIDE_HEADS = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Chips whose memory suffices for the backward of heads wider than 192."""
_MAX_HEAD_WIDTH = 256


def choose_packed_attention(
    spec: TrainingSpec, task: Task, model: nn.Module, device: torch.device, reporter: Reporter
) -> None:
    """Make the model of a task with packed rows use the kernel if it can. The log, and on a GPU the event
    `packed_attention`, name the choice and the obstacle to the kernel."""
    fit: KernelFit | None = getattr(model, "kernel_fit", None)
    if not task.examples.packed or fit is None:
        return
    reason = kernel_obstacle(spec, fit, device)
    if not reason:
        _take_boundaries(model)
    path = "mask" if reason else "kernel"
    message = f"attention in packed rows uses a {path}" + (f": {reason}" if reason else "")
    log.info(message)
    if device.type == "cuda":
        reporter.event("packed_attention", message, data={"path": path, "reason": reason})


def kernel_obstacle(spec: TrainingSpec, fit: KernelFit, device: torch.device) -> str:
    """Return why a model needs the mask, or an empty text."""
    return _device_obstacle(spec, device) or fit.obstacle or _head_obstacle(fit.head_width, device)


def _take_boundaries(model: Any) -> None:
    model.take_boundaries()


def _device_obstacle(spec: TrainingSpec, device: torch.device) -> str:
    """Return why the kernel does not run here whatever the model is, or an empty text."""
    if device.type != "cuda":
        return "the kernel needs a GPU"
    if torch.version.hip:
        return "the kernel was not tried on ROCm"
    if spec.precision_kind.computes_in_fp32:
        return f"the kernel computes in bf16 and fp16, and `precision` is {spec.precision}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the kernel needs a GPU of compute capability 8.0"
    return ""


def _head_obstacle(width: int, device: torch.device) -> str:
    limit = _MAX_HEAD_WIDTH if torch.cuda.get_device_capability(device) in _WIDE_HEADS else 192
    if width % 8 or width > limit:
        return f"its heads have a width of {width}, and the kernel needs a multiple of 8 up to {limit}"
    return ""
