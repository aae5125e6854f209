"""Phase `head`: the loss from the hidden states with its gradients, by our kernel, by plain torch and by Liger."""

import gc
import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, TINY_LENGTH, Shape
from bench.gpu.weights import without_kernels
from worker.tasks.language_loss import head_loss

Loss = Callable[[torch.Tensor, torch.Tensor, nn.Linear], torch.Tensor]
EXACT_TOKENS = 512
"""Tokens whose gradients are also computed in fp64."""


def cases(*, dry: bool) -> list[Case]:
    return [Case(shape.name, partial(_measure, shape), 15) for shape in (SHAPES[:1] if dry else SHAPES)]


def _measure(shape: Shape, tools: Tools) -> Outcome:
    width, vocabulary = (64, 512) if tools.dry else (shape.width, shape.vocabulary)
    tokens = TINY_LENGTH if tools.dry else shape.micro_size * shape.length
    head = nn.Linear(width, vocabulary, bias=False, device=tools.device)
    hidden = torch.randn(1, tokens, width, device=tools.device)
    labels = torch.randint(vocabulary, (1, tokens), device=tools.device)
    values: dict[str, Any] = {}
    exact = _gradients(_in_fp64, hidden[:, :EXACT_TOKENS], labels[:, :EXACT_TOKENS], head)
    for name, loss in _ways(tools).items():
        with without_kernels() if name == "without the kernel" else nullcontext():
            try:
                values |= _of_way(tools, name, loss, hidden, labels, head)
                rounded = _gradients(loss, hidden[:, :EXACT_TOKENS], labels[:, :EXACT_TOKENS], head)
                values[f"{name}: error"] = max(map(_difference, rounded, exact))
            except (RuntimeError, TypeError) as error:
                values[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
        gc.collect()
    ours, others = values.get("kernel: error"), values.get("all at once, compiled: error")
    # Without the reference there is no verdict; without a value of the kernel it has failed.
    passed = None if others is None else ours is not None and ours <= 2 * others
    return Outcome(values, passed, "the error against fp64 is at most twice the compiled loss's error")


def _ways(tools: Tools) -> dict[str, Loss]:
    ways: dict[str, Loss] = {"kernel": _ours, "without the kernel": _ours}
    ways["all at once, compiled"] = _at_once if tools.dry else torch.compile(_at_once)
    if importlib.util.find_spec("liger_kernel"):
        ways["Liger"] = _liger
    return ways


def _of_way(
    tools: Tools, name: str, loss: Loss, hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear
) -> dict[str, float]:
    def run() -> None:
        _gradients(loss, hidden, labels, head)

    milliseconds = tools.milliseconds(run)
    return {f"{name}: ms": milliseconds, f"{name}: GiB": tools.peak_gib(run)}


def _gradients(loss: Loss, hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the hidden states and of the head's weight."""
    inputs = hidden.detach().requires_grad_()
    head.weight.grad = None
    with torch.autocast(hidden.device.type, torch.bfloat16):
        summed = loss(inputs, labels, head)
    summed.backward()
    assert inputs.grad is not None
    assert head.weight.grad is not None
    return inputs.grad, head.weight.grad


def _ours(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    return head_loss(hidden, labels, head, head.out_features, head.parameters())


def _at_once(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).flatten(0, 1).float(), labels.flatten(), reduction="sum")


def _in_fp64(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        logits = functional.linear(hidden.double(), head.weight.double())
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def _liger(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Linear) -> torch.Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # type: ignore[import-not-found, unused-ignore]

    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")
    result: torch.Tensor = loss(head.weight.bfloat16(), hidden.flatten(0, 1).bfloat16(), labels.flatten())
    return result


def _difference(rounded: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative difference of two gradients."""
    return float((rounded - exact).norm() / exact.norm())
