"""Phase `update`: the update by AdamW of 2^28 parameters for each way to store parameters and moments."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.bytes import STATES
from bench.gpu.cases import Case, Outcome, Tools
from bench.gpu.shapes import SHAPES
from bench.gpu.weights import without_kernels
from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.half_parameters import split_parameters
from worker.engine.optim import build_optimizer

LAYERS, WIDTH = 16, 4096


def cases(*, dry: bool) -> list[Case]:
    return [Case(state, partial(_measure, state), 6) for state in STATES]


def _measure(state: str, tools: Tools) -> Outcome:
    layers, width = (2, 64) if tools.dry else (LAYERS, WIDTH)
    values: dict[str, Any] = {}
    for way in ("kernel", "without the kernel") if state != "fp32" else ("kernel",):
        module = nn.ModuleList(nn.Linear(width, width, bias=False, device=tools.device) for _ in range(layers))
        stored = {"state_dtype": "fp32", **STATES[state]}
        if "param_dtype" in stored:
            split_parameters(module, stored.get("grad_dtype", "fp32"))
        document = SHAPES[0].document(dry=tools.dry, compile=not tools.dry)
        document["optimizer"] |= {"state_dtype": stored.pop("state_dtype")}
        optimizer = build_optimizer(parse_spec(document | stored), module)
        for parameter in module.parameters():
            dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
            parameter.grad = torch.full_like(parameter, 1e-3, dtype=dtype)
        with without_kernels() if way != "kernel" else nullcontext():
            values[f"{way}: ms"] = tools.milliseconds(optimizer.step, runs=5)
        del module, optimizer, parameter
    speed = tools.value("ceilings", "copy", "GB/s")
    if speed:
        values["bytes a parameter at the speed of a copy"] = values["kernel: ms"] * speed * 1e6 / (layers * width**2)
    return Outcome(values)
