"""A Llama of plain torch with torchtitan's settings on one GPU: a reference that shares no code with the engine.

The settings of its Llama 3 presets: autocast to bf16, activation checkpointing that stores attention and every second
matrix product, a compilation of each block and of the loss, which takes all logits at once.
"""

import gc
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from bench.gpu.cases import Tools
from bench.gpu.shapes import TINY_LENGTH, Shape

_aten = torch.ops.aten
_ATTENTION = (
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def seconds_of_step(shape: Shape, tools: Tools, *, warm: int, timed: int) -> float:
    """Return the median seconds of a step."""
    gc.collect()
    sizes = shape.document(dry=tools.dry)["model"]
    length, rows = (TINY_LENGTH, 2) if tools.dry else (shape.length, shape.micro_size)
    model = _Decoder(sizes, length).to(tools.device)
    cross_entropy = _cross_entropy
    for block in model.blocks:
        block.forward = _checkpointed(block.forward)
    if not tools.dry:
        for block in model.blocks:
            block.compile(fullgraph=True)
        cross_entropy = torch.compile(_cross_entropy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    marks = []
    for _ in range(warm + timed + 1):
        tokens = torch.randint(sizes["vocab"], (rows, length + 1), device=tools.device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(tools.device.type, torch.bfloat16):
            cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if tools.engine.on_gpu:
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
    return median(after - before for before, after in pairwise(marks[warm:]))


class _Decoder(nn.Module):
    def __init__(self, sizes: dict[str, Any], length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes["vocab"], sizes["width"])
        self.blocks = nn.ModuleList(_Block(sizes, length) for _ in range(sizes["layers"]))
        self.norm = nn.RMSNorm(sizes["width"], eps=1e-5)
        self.head = nn.Linear(sizes["width"], sizes["vocab"], bias=False)
        if sizes["tied"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


class _Block(nn.Module):
    def __init__(self, sizes: dict[str, Any], length: int) -> None:
        super().__init__()
        width, inner = sizes["width"], sizes["feed_forward"]
        self.heads, self.groups, self.size = sizes["heads"], sizes["key_value_heads"], width // sizes["heads"]
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, self.groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        angles = torch.outer(torch.arange(length), 500_000.0 ** -(torch.arange(0, self.size, 2) / self.size))
        self.cosine: torch.Tensor
        self.sine: torch.Tensor
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](hidden)
        q, k = self._rotated(self.query(x), self.heads), self._rotated(self.key(x), self.groups)
        v = self._split(self.value(x), self.groups)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        x = self.norms[1](hidden)
        result: torch.Tensor = hidden + self.down(functional.silu(self.gate(x)) * self.up(x))
        return result

    def _split(self, values: torch.Tensor, heads: int) -> torch.Tensor:
        result: torch.Tensor = values.unflatten(2, (heads, self.size)).transpose(1, 2)
        return result

    def _rotated(self, values: torch.Tensor, heads: int) -> torch.Tensor:
        first, second = self._split(values, heads).float().chunk(2, dim=-1)
        cosine, sine = self.cosine, self.sine
        rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return rotated.to(values.dtype)


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _checkpointed(inner: Any) -> Any:
    def forward(*args: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, context_fn=_contexts)

    return forward


def _contexts() -> Any:
    products = {False: 0, True: 0}

    def policy(context: Any, operation: Any, *args: Any, **named: Any) -> CheckpointPolicy:
        stored = operation in _ATTENTION
        if operation == _aten.mm.default:
            products[context.is_recompute] += 1
            stored = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if stored else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
