"""`make bytes`: what a step moves through memory outside of matrix products, counted without a device.

At the true shapes of `bench.gpu`, with tensors that have no values. Milliseconds are bytes at the speed at which an
H200 copies: a prediction, where the step is not compiled further.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench._bill import Bill, Count, counting
from bench.gpu.shapes import SHAPES, Shape
from trainyard.contract.spec.decoders import LlamaModel
from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.frozen_base import hold_base
from worker.engine.half_parameters import split_parameters
from worker.engine.optim import build_optimizer, clip_gradients
from worker.engine.quantisation import dequantise, quantise, row_bytes
from worker.engine.strategies.base import ParallelModel
from worker.engine.trainable import freeze_parameters
from worker.tasks.cross_entropy import PLAIN, FewTargets
from worker.tasks.language_loss import head_loss
from worker.tasks.llama import Llama

BYTES_PER_SECOND = 4.3e12
ANSWERS = 0.3
"""The share of targets in a batch for fine-tuning."""
LORA_RANK = 16
STATES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "halves": {"param_dtype": "bf16"},
    "halves, bf16 moments": {"param_dtype": "bf16", "grad_dtype": "bf16", "state_dtype": "bf16"},
    "halves, int8 moments": {"param_dtype": "bf16", "grad_dtype": "bf16", "state_dtype": "int8"},
}
"""How parameters, gradients and moments are stored."""


@dataclass(frozen=True)
class Line:
    """A phase of a step with one recipe."""

    phase: str
    recipe: str
    count: Count
    units: float
    """What `per_unit` divides by."""
    unit: str
    limit: float | None = None
    """Bytes per unit; None where no bound was set."""

    @property
    def per_unit(self) -> float:
        return self.count.bytes / self.units

    @property
    def exceeds(self) -> bool:
        """Whether it is more than the bound, to the digit that is printed."""
        return self.limit is not None and round(self.per_unit, 1) > round(self.limit, 1)

    def row(self) -> str:
        limit = "" if self.limit is None else f"at most {self.limit:.1f}"
        milliseconds = self.count.bytes / BYTES_PER_SECOND * 1e3
        return (
            f"{self.phase:15}{self.recipe:28}{self.count.bytes / 1e9:9.1f} GB{milliseconds:8.1f} ms"
            f"{self.count.launches:8} launches{self.count.flops / 1e12:7.1f} TF"
            f"{self.per_unit:8.1f} B/{self.unit:10}{limit}"
        )


def main() -> int:
    """Return 1 if a phase exceeds its bound, else 0."""
    exceeded = False
    print(f"Counted without a device. Milliseconds are predictions: bytes at {BYTES_PER_SECOND / 1e12} TB/s.")
    for shape in SHAPES:
        print(f"\n{shape.name}, {shape.micro_size * shape.length} tokens")
        for line in lines(shape):
            exceeded |= line.exceeds
            print(line.row())
    return 1 if exceeded else 0


def lines(shape: Shape) -> Iterator[Line]:
    """Yield all phases of a step of a shape."""
    yield from head_lines(shape)
    yield casts_line(shape)
    for state in STATES:
        yield update_line(shape, state)
    yield clip_line(shape, "fp32")
    yield clip_line(shape, "halves, bf16 moments")
    yield dequantisation_line(shape, "nf4")
    yield dequantisation_line(shape, "int8")
    yield adapters_line(shape)
    yield data_line(shape)


def head_lines(shape: Shape) -> Iterator[Line]:
    """Yield the loss from the hidden states, forward and backward: of a trained head, and of a frozen one in bf16; of
    all tokens, and of the answers of a batch for fine-tuning."""
    tokens, vocabulary, width = shape.micro_size * shape.length, shape.vocabulary, shape.width
    for trained, share in itertools.product((True, False), (1.0, ANSWERS)):
        targets = round(tokens * share)
        with counting() as bill:
            head = nn.Linear(width, vocabulary, bias=False, dtype=torch.float32 if trained else torch.bfloat16)
            head.requires_grad_(trained)
            hidden = torch.zeros(1, tokens, width, requires_grad=True)
            labels = torch.zeros(1, tokens, dtype=torch.int64)
            terms = PLAIN if share == 1.0 else FewTargets(PLAIN, targets)
            with _phase(bill, "head", head), torch.autocast("cpu", torch.bfloat16):
                head_loss(hidden, labels, head, vocabulary, head.parameters(), terms).backward()
        weights = 8 * width * vocabulary * -(-targets // 4096) if trained else 0
        # Hidden states of all tokens are read, and their gradients written, in fp32.
        others = 0 if share == 1.0 else 16 * width * tokens
        recipe = ("trained" if trained else "frozen in bf16") + ("" if share == 1.0 else f", {share:.0%} targets")
        logits = targets * vocabulary
        limit = 8 + (weights + others) / logits
        yield Line("head", recipe, bill.phases["head"], logits, "logit", limit)


def casts_line(shape: Shape) -> Line:
    """Return the conversions of weights to bf16 and of their gradients to fp32, in one micro-batch."""
    with counting() as bill:
        model = _one_layer(shape)
        head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        x = torch.zeros(shape.micro_size, shape.length, shape.width, requires_grad=True)
        positions = torch.arange(shape.length)[None]
        with torch.autocast("cpu", torch.bfloat16), _phase(bill, "block", model):
            result = model.model.layers[0](x, positions)
        with _phase(bill, "block", model):
            result.sum().backward()
        block = bill.phases.pop("casts")
        with torch.autocast("cpu", torch.bfloat16), _phase(bill, "head", head):
            head_loss(x.detach(), positions.expand(x.shape[:2]), head, shape.vocabulary, head.parameters())
    count = _sum(block, shape.layers, bill.phases["casts"])
    return Line("casts", "micro-batch", count, parameters_of(shape), "parameter")


def update_line(shape: Shape, state: str) -> Line:
    """Return the update by AdamW."""

    def update(module: nn.Module) -> Callable[[], object]:
        # Compiled, as where a kernel makes the update.
        optimizer = build_optimizer(_spec(shape, compile=True, **STATES[state]), module)
        for values in optimizer.state.values():
            # A tensor without a value could not be read.
            values["step"] = 1.0
        return optimizer.step

    limit = {"fp32": 28.0, "halves, bf16 moments": 20.0, "halves, int8 moments": 16.0}.get(state)
    return Line("update", state, _of_parameters(shape, update, state), parameters_of(shape), "parameter", limit)


def clip_line(shape: Shape, state: str) -> Line:
    """Return the norm of all gradients and what limits them before the update."""

    def clip(module: nn.Module) -> Callable[[], object]:
        optimizer = build_optimizer(_spec(shape, **STATES[state]), module)

        def run() -> None:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            clip_gradients(optimizer, 1.0, ParallelModel(module, module).norm(gradients))

        return run

    return Line("clip", state, _of_parameters(shape, clip, state), parameters_of(shape), "parameter")


def dequantisation_line(shape: Shape, dtype: Any) -> Line:
    """Return the conversion of all weights of the layers to bf16, which forward and backward make once each."""
    # Tables are made once, and must have values after this.
    dequantise(quantise(torch.ones(1, 64), dtype), 64, dtype, torch.bfloat16)
    with counting() as bill:
        weights = [p for p in _one_layer(shape).model.layers[0].parameters() if p.ndim == 2]
        for weight in weights:
            rows, columns = weight.shape
            held = torch.zeros(rows, row_bytes(columns, dtype), dtype=torch.uint8)
            with bill.phase("dequantisation"):
                dequantise(held, columns, dtype, torch.bfloat16)
    values = sum(weight.numel() for weight in weights) * shape.layers
    return Line("dequantisation", dtype, _sum(bill.phases["dequantisation"], shape.layers), values, "value", 3.0)


def adapters_line(shape: Shape) -> Line:
    """Return what adapters of all linear layers add to forward and backward, on a base in bf16."""
    counts = []
    for adapted in (True, False):
        with torch.device("meta"):
            model = _one_layer(shape).requires_grad_(False)
            if adapted:
                freeze_parameters(_spec(shape, lora_rank=LORA_RANK), model)
            hold_base(model, "bf16")
        with counting() as bill:
            _leave_meta(model)
            x = torch.zeros(shape.micro_size, shape.length, shape.width, requires_grad=True)
            positions = torch.arange(shape.length)[None]
            with bill.phase("count"), torch.autocast("cpu", torch.bfloat16):
                model.model.layers[0](x, positions, None).sum().backward()
        counts.append(bill.phases["count"])
    values = sum(sum(layer.shape) for layer in model.model.layers[0].parameters() if layer.ndim == 2)
    units = shape.micro_size * shape.length * values * shape.layers
    count = _sum(_sum(counts[1], -1, counts[0]), shape.layers)
    # Each output of the base's product, and each gradient of its inputs, is read and written in 16 bits.
    return Line("adapters", f"rank {LORA_RANK}, all layers", count, units, "in or out", 4.1)


def data_line(shape: Shape) -> Line:
    """Return the copy of tokens and labels to the device."""
    tokens = shape.micro_size * shape.length
    with counting() as bill:
        batch = torch.zeros(2, shape.micro_size, shape.length, dtype=torch.int64)
        with bill.phase("data"):
            batch.clone()
    return Line("data", "tokens, labels", bill.phases["data"], tokens, "token")


def parameters_of(shape: Shape) -> int:
    with torch.device("meta"):
        model = _one_layer(shape)
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    return sum(p.numel() for p in model.parameters()) + (shape.layers - 1) * layer


def _leave_meta(model: nn.Module) -> None:
    """Replace parameters on the meta device by others of the same kind on the CPU; `Module.to_empty` cannot."""
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty(old.shape, dtype=old.dtype), old.requires_grad))


def _of_parameters(shape: Shape, prepare: Callable[[nn.Module], Callable[[], object]], state: str) -> Count:
    """Return the sum over all parameters: those of a layer, times the layers, and the others."""
    counts = []
    for part in ("layer", "others"):
        with counting() as bill:
            module: nn.Module = _one_layer(shape)
            assert isinstance(module, Llama)
            if part == "layer":
                module = module.model.layers[0]
            else:
                module.model.layers = nn.ModuleList()
            stored = STATES[state]
            if "param_dtype" in stored:
                split_parameters(module, stored.get("grad_dtype", "fp32"))
            run = prepare(module)
            for parameter in module.parameters():
                parameter.grad = torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None))
            with bill.phase("the first time"):
                run()
            with bill.phase("count"):
                run()
        counts.append(bill.phases["count"])
    return _sum(counts[0], shape.layers, counts[1])


def _phase(bill: Bill, name: str, module: nn.Module) -> Any:
    return bill.phase(name, weights=frozenset(tuple(p.shape) for p in module.parameters() if p.ndim == 2))


def _one_layer(shape: Shape) -> Llama:
    model = shape.document(dry=False)["model"] | {"layers": 1}
    return Llama(LlamaModel(**{name: value for name, value in model.items() if name not in ("source", "name")}))


def _spec(shape: Shape, state_dtype: str = "fp32", **changes: Any) -> Any:
    document = shape.document(dry=False, **changes)
    document["optimizer"] = document["optimizer"] | {"state_dtype": state_dtype}
    return parse_spec(document)


def _sum(first: Count, times: int, other: Count | None = None) -> Count:
    more = other or Count()
    return Count(
        first.bytes * times + more.bytes,
        first.launches * times + more.launches,
        first.flops * times + more.flops,
        first.synchronisations * times + more.synchronisations,
    )


if __name__ == "__main__":
    sys.exit(main())
