"""Packed rows of texts in phase `truth`: attention by the kernel makes the losses that a mask makes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.gpu.cases import Case, Outcome, Tools
from trainyard.contract.spec.decoders import LlamaModel
from worker.data.builtin import load_stdlib
from worker.engine import attention
from worker.export.model import save_model
from worker.tasks import packing, varlen_kernel
from worker.tasks.llama import Llama

TOLERANCE = 0.02
_SIZES = {"layers": 4, "width": 256, "heads": 4, "context": 512}
_TINY = {"layers": 1, "width": 32, "heads": 4, "context": 64}
_CHOICE = "kernel_obstacle"


def cases(*, dry: bool) -> list[Case]:
    return [
        Case(f"packed rows, {name}: kernel against mask in bf16", _compare(name))
        for name in (("hf",) if dry else ("gpt", "llama", "hf"))
    ]


def write_texts(path: Path, *, tokens: int, mean: int) -> Path:
    """Write about as many bytes of the standard library as texts of very different lengths with this mean."""
    source = load_stdlib()[:tokens].numpy().tobytes().decode(errors="replace")
    generator = torch.Generator().manual_seed(1)
    position = 0
    with path.open("w") as file:
        while position < len(source):
            length = 2 + int(mean * -torch.rand((), generator=generator).clamp(min=1e-3).log())
            file.write(json.dumps({"text": source[position : position + length]}) + "\n")
            position += length
    return path


def write_model(tools: Tools, folder: Path, model: dict[str, Any]) -> Path:
    """Write a Hugging Face Llama of the sizes of a builtin one, with weights drawn at random."""
    folder.mkdir()
    spec = tools.engine.resolve(_document(model, folder))
    assert isinstance(spec.model, LlamaModel)
    torch.manual_seed(1)
    state = Llama(spec.model).state_dict()
    if spec.model.tied:
        del state["lm_head.weight"]
    save_model(folder, state, spec)
    return folder


def _compare(name: str) -> Any:
    def run(tools: Tools) -> Outcome:
        sizes = _TINY if tools.dry else _SIZES
        model = {"source": "builtin", "name": "gpt" if name == "gpt" else "llama", **sizes}
        data = write_texts(tools.folder / "texts.jsonl", tokens=40 * sizes["context"], mean=sizes["context"] // 6)
        if name == "hf":
            model = {"source": "hf", "path": str(write_model(tools, tools.folder / "model", model))}
        document = _document(model, data)
        with patch.object(attention, _CHOICE, lambda *_: "compared with the kernel"):
            masked = tools.engine.train(document)
        with _kernel_of(tools):
            separate = tools.engine.train(document)
        pairs = zip(masked.losses, separate.losses, strict=True)
        difference = max(abs(float(one) - float(other)) / abs(float(one)) for one, other in pairs)
        used = tools.dry or [data["path"] for data in separate.events["packed_attention"]] == ["kernel"]
        values = {"largest relative difference": difference}
        return Outcome(values, used and difference <= TOLERANCE, f"the kernel is used; losses differ by {TOLERANCE:g}")

    return run


@contextmanager
def _kernel_of(tools: Tools) -> Iterator[None]:
    """Use the kernel; in a dry run a loop over the examples takes its place."""
    with ExitStack() as stack:
        if tools.dry:
            stack.enter_context(patch.object(attention, _CHOICE, lambda spec, fit, device: fit.obstacle))
            stack.enter_context(patch.object(varlen_kernel, "attend_by_kernel", packing.attend_by_loop))
        yield


def _document(model: dict[str, Any], data: Path) -> dict[str, Any]:
    return {
        "task": "causal_lm",
        "precision": "bf16",
        "model": model,
        "data": {"source": "jsonl", "path": str(data)},
        "batch": {"size": 8, "micro_size": 4},
        "optimizer": {"name": "adamw", "lr": 0.001, "clip_norm": 1.0},
        "steps": 4,
        "log": {"every_steps": 1},
        "checkpoint": {"export": False},
    }
