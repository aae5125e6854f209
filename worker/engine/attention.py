"""Reports the kernel of attention, and chooses how it keeps the examples of packed rows apart: by a flash kernel for
sequences of several lengths, or by a dense mask."""

import logging
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend

from trainyard.contract.spec.training_spec import TrainingSpec
from worker.engine.precision import COMPUTE_DTYPE
from worker.reporting.reporter import Reporter
from worker.tasks.base import Task
from worker.tasks.packing import AttentionShape, KernelFit

log = logging.getLogger(__name__)

_WIDE_HEADS = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Chips whose memory suffices for the backward of heads wider than 192."""
_MAX_HEAD_WIDTH = 256
_KERNELS = {
    SDPBackend.FLASH_ATTENTION.value: "flash",
    SDPBackend.CUDNN_ATTENTION.value: "cudnn",
    SDPBackend.EFFICIENT_ATTENTION.value: "efficient",
    SDPBackend.MATH.value: "none",
}


def choose_attention(
    spec: TrainingSpec, task: Task, model: nn.Module, device: torch.device, reporter: Reporter
) -> None:
    """Make a model with packed rows use the kernel for them if it can, and report which kernel a model uses."""
    (_choose_for_packed_rows if task.examples.packed else _report_kernel)(spec, model, device, reporter)


def _report_kernel(spec: TrainingSpec, model: nn.Module, device: torch.device, reporter: Reporter) -> None:
    """Send the event `attention` with the kernel that torch chooses for rows of a builtin model on a GPU.

    Torch chooses by shapes, dtype and device alone, so all steps and attempts of a run have the same kernel.
    """
    shape: AttentionShape | None = getattr(model, "attention_shape", None)
    if shape is None or device.type != "cuda":
        return
    kernel = chosen_kernel(shape, COMPUTE_DTYPE.get(spec.precision, torch.float32), device)
    message = {
        "none": "attention uses no kernel of torch: it stores the scores of all pairs of tokens",
        "unknown": "the kernel of attention is unknown",
    }.get(kernel, f"attention uses torch's kernel {kernel}")
    log.info(message)
    reporter.event("attention", message, level="warning" if kernel == "none" else "info", data={"kernel": kernel})


def chosen_kernel(shape: AttentionShape, dtype: torch.dtype, device: torch.device) -> str:
    """Return the kernel that torch chooses for causal attention with gradients: a value of `_KERNELS`, or `unknown`."""
    grouped = shape.heads != shape.shared_heads
    try:
        q, k, v = (
            torch.empty(1, heads, shape.length, shape.head_width, dtype=dtype, device=device, requires_grad=True)
            for heads in (shape.heads, shape.shared_heads, shape.shared_heads)
        )
        choice = torch._fused_sdp_choice(q, k, v, dropout_p=shape.dropout, is_causal=True, enable_gqa=grouped)
    except (AttributeError, RuntimeError) as error:
        # The function is private, and a run must not end because its kernel is unknown.
        log.warning("the kernel of attention is unknown: %s", error)
        return "unknown"
    return _KERNELS.get(choice, "unknown")


def _choose_for_packed_rows(spec: TrainingSpec, model: nn.Module, device: torch.device, reporter: Reporter) -> None:
    """Make a model use the kernel if it can. The log, and on a GPU the event `packed_attention`, name the choice and
    what prevents the kernel."""
    fit: KernelFit | None = getattr(model, "kernel_fit", None)
    if fit is None:
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
