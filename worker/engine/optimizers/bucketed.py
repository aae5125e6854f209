"""Runs an optimizer in fp32 on a part of the parameters at a time. They and the moments may be stored in fewer bits.

Updates by Adam and AdamW need no such copies where a kernel makes them: see `fused_adam`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worker.core.float_halves import join, split
from worker.core.kernels import has_triton
from worker.engine.half_parameters import low_half
from worker.engine.optimizers.encodings import (
    POSITIVE_MOMENTS,
    EncodedRows,
    StateDtype,
    mixed,
    random_bits,
    scales_shape,
    signed,
    stored_dtype,
)
from worker.engine.optimizers.fused_adam import adam_, numbers_of
from worker.engine.optimizers.shards import as_matrix, first_row, local_part, zeros_by_row

BUCKET = 2**24
"""Elements that are updated at once, 64 MiB in fp32. A single row may have more."""
_ALIGNED = 16
"""Values of a vector of a kernel. A bucket ends with a whole vector where it can, because kernels round the values of
an incomplete vector in another way."""
SCALE = "_scale"
"""The suffix of a moment's name that names the scales of its int8 codes."""


class _Rows(NamedTuple):
    """Some rows of this rank's part of a parameter."""

    number: int
    """The number of the parameter among all parameters of the optimizer."""
    parameter: torch.Tensor
    start: int
    stop: int


class BucketedOptimizer(torch.optim.Optimizer):
    """Makes the updates of another optimizer, whose arithmetic is elementwise, on fp32 copies of one bucket at a time.

    Parameters may be in bf16 with a lower half, gradients and moments in bf16, and moments in int8. Only the copies
    of one bucket exist in fp32; tensors that are stored in fp32 change in place. Each rank updates its own shards.

    All state exists from the start: a checkpoint is loaded into it in place.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        *,
        moments: Sequence[str],
        dtype: StateDtype,
        counts_steps: bool,
        seed: int,
        compiled: bool = False,
    ) -> None:
        """Take over the parameter groups of `inner`, which has no state yet.

        Args:
            moments: Names of the state of `inner` that has the shape of a parameter.
            counts_steps: Whether `inner` also stores the number of updates.
            seed: The seed of the random rounding.
            compiled: Compile updates by Adam and AdamW where there is no kernel for them.
        """
        super().__init__(inner.param_groups, {})
        self.current_step = 0
        """The step of the run, which random rounding depends on. To be set before each update."""
        self.gradient_factor: torch.Tensor | None = None
        """Gradients count multiplied by this in the next update: fp32, shape ()."""
        self._compiled = compiled
        self._inner = inner
        self._moments = tuple(moments)
        self._seed = seed
        self._numbers = {id(p): number for number, p in enumerate(self._parameters())}
        for parameter in self._parameters():
            if not isinstance(parameter, DTensor):
                # Parts are views of rows; `channels_last` and transposed weights have another order in memory.
                parameter.data = parameter.data.contiguous()
            self.state[parameter] = self._initial_state(parameter, dtype, counts_steps=counts_steps)

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _initial_state(
        self, parameter: torch.Tensor, dtype: StateDtype, *, counts_steps: bool
    ) -> dict[str, torch.Tensor]:
        # The count is on the host, so that no step waits for the device.
        state = {"step": torch.zeros(())} if counts_steps else {}
        stored = stored_dtype(parameter.shape, dtype)
        for name in self._moments:
            state[name] = torch.zeros_like(parameter, dtype=stored, requires_grad=False)
            if stored == torch.uint8:
                state[name + SCALE] = zeros_by_row(parameter, scales_shape(parameter.shape))
        return state

    def named_state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return all state by the names in checkpoints, `state.<parameter>.<name>`. The tensors are not copied."""
        return {
            f"state.{path}.{name}": value
            for path, parameter in module.named_parameters()
            for name, value in self.state.get(parameter, {}).items()
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient. `closure` is not called."""
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in trained:
                if "step" in self.state[parameter]:
                    self.state[parameter]["step"] += 1
            copied = []
            for parameter in trained:
                if self._has_kernel(parameter):
                    self._update_at_once(parameter, group)
                else:
                    copied.append((self._numbers[id(parameter)], parameter))
            for bucket in _buckets(copied):
                self._update([self._load(rows) for rows in bucket], group)
        self.gradient_factor = None

    def _has_kernel(self, parameter: torch.Tensor) -> bool:
        if not isinstance(self._inner, torch.optim.Adam | torch.optim.AdamW):
            return False
        return has_triton() if parameter.is_cuda else self._compiled

    def _update_at_once(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Update this rank's part of a parameter by a kernel."""
        state, low = self.state[parameter], low_half(parameter)
        matrix, scales = as_matrix(parameter), [state.get(name + SCALE) for name in ("exp_avg", "exp_avg_sq")]
        numbers = numbers_of(group, int(state["step"]), decoupled=isinstance(self._inner, torch.optim.AdamW))
        first, second = mixed((self._seed, self.current_step, self._numbers[id(parameter)]))
        adam_(
            matrix,
            None if low is None else as_matrix(low),
            _gradient(parameter),
            as_matrix(state["exp_avg"]),
            as_matrix(state["exp_avg_sq"]),
            self.gradient_factor,
            list(numbers),
            [signed(first + first_row(parameter) * matrix.shape[1]), signed(second)],
            self._compiled,
            *(None if values is None else as_matrix(values) for values in scales),
        )

    def _load(self, rows: _Rows) -> "_Copy":
        state = self.state[rows.parameter]
        moments = {name: _encoded_rows(state, name, rows) for name in self._moments}
        return _Copy(rows, state, moments, self.gradient_factor)

    def _update(self, copies: "Sequence[_Copy]", group: dict[str, Any]) -> None:
        inner = self._inner
        inner.param_groups = [group | {"params": [copy.weights for copy in copies]}]
        inner.state.clear()
        for copy in copies:
            inner.state[copy.weights] = copy.state()
        inner.step()
        for copy in copies:
            copy.store(inner.state[copy.weights], self._seed, self.current_step)
        inner.param_groups = []
        inner.state.clear()


@dataclass
class _Copy:
    """The fp32 values of some rows during an update; views of tensors that are stored in fp32."""

    rows: _Rows
    stored: Mapping[str, torch.Tensor]
    moments: Mapping[str, EncodedRows]
    factor: torch.Tensor | None
    """Multiplies the gradient."""
    weights: torch.Tensor = field(init=False)
    """Shape (rows, values of a row). With a gradient."""

    def __post_init__(self) -> None:
        parameter, low = self.rows.parameter, low_half(self.rows.parameter)
        weights = _cut(parameter, self.rows)
        self.weights = weights if low is None else join(weights, _cut(low, self.rows))
        gradient = _gradient(parameter)[self.rows.start : self.rows.stop].float()
        self.weights.grad = gradient if self.factor is None else gradient * self.factor

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state with which the inner optimizer makes its update."""
        state = {name: rows.decode() for name, rows in self.moments.items()}
        if "step" in self.stored:
            # The inner optimizer counts this update itself.
            count = float(self.stored["step"]) - 1
            state["step"] = torch.full((), count, dtype=torch.float32, device=self.weights.device)
        return state

    def store(self, state: Mapping[str, torch.Tensor], seed: int, step: int) -> None:
        """Store the updated values."""
        low = low_half(self.rows.parameter)
        if low is not None:
            split(self.weights, _cut(self.rows.parameter, self.rows), _cut(low, self.rows))
        bits = self._random_bits(seed, step)
        for number, (name, rows) in enumerate(self.moments.items()):
            # 16 bits for each of at most two moments.
            random = None if bits is None else (bits >> 16 * number).bitwise_and_(0xFFFF)
            rows.encode(state[name], random)

    def _random_bits(self, seed: int, step: int) -> torch.Tensor | None:
        if all(rows.values.dtype == torch.float32 for rows in self.moments.values()):
            return None
        count, width = self.weights.numel(), self.weights.shape[1]
        position = (first_row(self.rows.parameter) + self.rows.start) * width
        # A tensor with more than 2^32 values uses the same bits twice in a step.
        return random_bits(count, position, (seed, step, self.rows.number), self.weights.device)


def _encoded_rows(state: Mapping[str, torch.Tensor], name: str, rows: _Rows) -> EncodedRows:
    scales = _cut(state[name + SCALE], rows) if name + SCALE in state else None
    return EncodedRows(_cut(state[name], rows), scales, positive=name in POSITIVE_MOMENTS)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of this rank's part of a parameter as a matrix, next to each other in memory."""
    assert parameter.grad is not None
    return as_matrix(local_part(parameter.grad).contiguous())


def _cut(tensor: torch.Tensor, rows: _Rows) -> torch.Tensor:
    """Return rows of this rank's part of a tensor, as a matrix that shares its memory."""
    return as_matrix(tensor)[rows.start : rows.stop]


def _buckets(parameters: Sequence[tuple[int, torch.Tensor]]) -> Iterator[list[_Rows]]:
    """Yield the rows of all parameters, several at once up to the size of a bucket."""
    bucket: list[_Rows] = []
    room = BUCKET
    for number, parameter in parameters:
        (count, width), start = as_matrix(parameter).shape, 0
        if not width:
            continue
        while start < count:
            if bucket and room < width:
                yield bucket
                bucket, room = [], BUCKET
            fitting = max(1, room // width)
            if fitting < count - start and fitting > _ALIGNED:
                fitting -= fitting % _ALIGNED
            stop = min(count, start + fitting)
            bucket.append(_Rows(number, parameter, start, stop))
            room -= (stop - start) * width
            start = stop
    if bucket:
        yield bucket
