"""Phase `ceilings`: the speed of matrix products, attention and copies of our shapes, which no step can exceed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES, TINY_LENGTH, Shape

KINDS = ("bf16", "fp8", "fp32 output")
BACKENDS = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
TOKENS = 16_384


def cases(*, dry: bool) -> list[Case]:
    shapes = SHAPES[:1] if dry else SHAPES
    return [
        Case("copy", _copy, 3),
        *(Case(f"{shape.name}, attention", partial(_attention, shape), 5) for shape in shapes),
        *(
            Case(f"{shape.name}, products, {kind}", partial(_products, shape, kind), 6)
            for shape in shapes
            for kind in KINDS
        ),
    ]


def _copy(tools: Tools) -> Outcome:
    source = torch.zeros(2**10 if tools.dry else 2**30, device=tools.device)
    target = torch.empty_like(source)
    milliseconds = tools.milliseconds(lambda: target.copy_(source))
    return Outcome({"ms": milliseconds, "GB/s": 8 * source.numel() / milliseconds / 1e6})


def _products(shape: Shape, kind: str, tools: Tools) -> Outcome:
    """Measure the forward of each layer, its gradient of the inputs and of the weight, in TFLOP/s."""
    width, inner = (64, 128) if tools.dry else (shape.width, shape.feed_forward)
    tokens = TINY_LENGTH if tools.dry else TOKENS
    narrow = width * shape.key_value_heads // shape.heads
    layers = {"q": (width, width), "k": (width, narrow), "q,k,v": (width, width + 2 * narrow), "up": (width, inner)}
    layers |= {"gate,up": (width, 2 * inner), "down": (inner, width)}
    values: dict[str, Any] = {}
    for name, (before, after) in layers.items():
        ways = {
            "forward": (tokens, before, after),
            "inputs": (tokens, after, before),
            "weight": (after, tokens, before),
        }
        for way, (m, k, n) in ways.items():
            if kind == "fp32 output" and way != "weight":
                continue
            milliseconds = _measured(tools, partial(_product, kind, m, k, n, tools.device))
            values[f"{name} {way}"] = milliseconds if isinstance(milliseconds, str) else 2e-9 * m * k * n / milliseconds
    return Outcome(values, note="TFLOP/s")


def _product(kind: str, m: int, k: int, n: int, device: torch.device) -> Callable[[], object]:
    a, b = (torch.randn(size, device=device).bfloat16() for size in ((m, k), (n, k)))
    if kind == "fp8":
        a, b, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    if kind == "fp32 output":
        total = torch.zeros(m, n, device=device)
        return lambda: torch.addmm(total, a, b.t(), out_dtype=torch.float32)
    return lambda: a @ b.t()


def _attention(shape: Shape, tools: Tools) -> Outcome:
    """Measure causal attention by each backend, forward and backward, in TFLOP/s of the products that are needed."""
    heads, groups = (4, 2) if tools.dry else (shape.heads, shape.key_value_heads)
    length, size = (TINY_LENGTH, 16) if tools.dry else (shape.length, shape.width // shape.heads)
    rows = 1 if tools.dry else TOKENS // length
    values: dict[str, Any] = {}
    for name, backend in BACKENDS.items():
        milliseconds = _measured(tools, partial(_attend, backend, (rows, length, size), heads, groups, tools.device))
        flops = 3.5 * 2 * rows * heads * length**2 * size
        values[name] = milliseconds if isinstance(milliseconds, str) else flops / milliseconds / 1e9
    return Outcome(values, note="TFLOP/s")


def _attend(
    backend: SDPBackend | None, sizes: tuple[int, int, int], heads: int, groups: int, device: torch.device
) -> Callable[[], object]:
    rows, length, size = sizes
    q, k, v = (
        torch.randn(rows, count, length, size, device=device).bfloat16().requires_grad_()
        for count in (heads, groups, groups)
    )
    gradient = torch.randn_like(q)

    def run() -> None:
        def attend() -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)

        if backend is None:
            result = attend()
        else:
            with sdpa_kernel(backend):
                result = attend()
        result.backward(gradient)

    return run


def _measured(tools: Tools, prepare: Callable[[], Callable[[], object]]) -> float | str:
    """Return milliseconds, or the error where the device or this torch cannot."""
    try:
        return tools.milliseconds(prepare())
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
