"""Bytes of parameters as a rank holds and gathers them, by the rules of `worker/engine/frozen_base.py` for
`lora.base_dtype`. Pure functions."""

from dataclasses import dataclass
from functools import cached_property

from service.plugins.planner.model_structure import Parameter
from service.plugins.planner.trainable_parameters import TrainableModel
from trainyard.contract.kinds.precisions import PrecisionKind
from trainyard.contract.spec.training_spec import TrainingSpec

BLOCK = 64
"""Values that share a scale, for `nf4`."""
CHUNK = 2**22
"""Values that are dequantised at once. Both in `worker/engine/quantisation.py`; a test compares them."""
_ENCODING_BYTES = 8
"""Bytes for each value of a chunk while it is quantised, besides the values in fp32."""
_CHUNK_BYTES = {"int8": 4, "nf4": 6}
"""Bytes for each value of a chunk: the value in fp32, for `nf4` also its code as half an int32."""


@dataclass(frozen=True)
class HeldParameters:
    """The parameters of a model with a frozen base, or of a model without adapters."""

    trainable: TrainableModel
    base_dtype: str
    precision: PrecisionKind
    rounds_frozen: bool = False
    """Whether frozen parameters are in bf16, like the trained parameters (`param_dtype`)."""

    @property
    def width(self) -> int:
        """Bytes of a computed value."""
        return self.precision.value_bytes

    @cached_property
    def total(self) -> int:
        """Bytes of all parameters in the dtypes in which they are held."""
        return sum(map(self.held, self.trainable.structure.parameters))

    @cached_property
    def values(self) -> int:
        """The values that are gathered of all parameters."""
        return sum(map(self.gathered, self.trainable.structure.parameters))

    def held(self, parameter: Parameter) -> int:
        """Return the bytes of a parameter in the dtype in which it is held; both halves of a trained parameter in
        bf16."""
        if self.rounds_frozen and parameter.name not in self.trainable.trained:
            return 2 * parameter.size
        match self._dtype(parameter):
            case "bf16":
                return 2 * parameter.size
            case "fp32":
                return 4 * parameter.size
            case quantised:
                rows, columns = parameter.shape
                return rows * row_bytes(columns, quantised)

    def gathered(self, parameter: Parameter) -> int:
        """Return the values that a sharded strategy gathers, as values of the compute dtype: a quantised parameter is
        gathered in its quantised form."""
        if self._dtype(parameter) in ("fp32", "bf16"):
            return parameter.size
        return -(-self.held(parameter) // self.width)

    def read(self) -> int:
        """Return the maximum bytes of a parameter while it is drawn or read in fp32 and, if necessary, quantised."""
        parameters = self.trainable.structure.parameters
        quantised = max((p.size for p in parameters if self._dtype(p) in _CHUNK_BYTES), default=0)
        largest = max((p.size for p in parameters), default=0)
        return max(4 * largest, 4 * quantised + _ENCODING_BYTES * min(CHUNK, quantised))

    def converted(self, *, gathers: bool) -> int:
        """Return the bytes of the largest converted weight of a block, which exists while its layer computes.

        Args:
            gathers: The strategy converts to the compute dtype when it gathers; quantised weights are gathered as held.
        """
        quantised = [p.size for p in self.trainable.structure.parameters if self._dtype(p) in _CHUNK_BYTES]
        if quantised:
            return self.width * max(quantised) + _CHUNK_BYTES[self.base_dtype] * min(CHUNK, max(quantised))
        linear = (p.size for p in self.trainable.structure.parameters if p.kind == "linear" and self._is_whole(p))
        return 0 if gathers else self._converted_bf16(max(linear, default=0))

    def converted_head(self, head_values: int, *, gathers: bool) -> int:
        """Return the same for the output layer, which is not quantised."""
        return 0 if gathers else self._converted_bf16(head_values)

    def _converted_bf16(self, values: int) -> int:
        return 0 if self.base_dtype == "fp32" or self.precision.computes_in_bf16 else self.width * values

    def _is_whole(self, parameter: Parameter) -> bool:
        return self._dtype(parameter) == "bf16" and parameter.module != self.trainable.structure.output

    def _dtype(self, parameter: Parameter) -> str:
        if self.base_dtype == "fp32" or parameter.name in self.trainable.trained or len(parameter.shape) != 2:
            return "fp32"
        structure = self.trainable.structure
        whole = {structure.output, *structure.tied, *(name.rpartition(".")[0] for _, name in structure.aliases)}
        if parameter.kind == "embedding" or parameter.module in whole:
            return "bf16"
        return self.base_dtype if parameter.kind == "linear" else "fp32"


def held_parameters(spec: TrainingSpec, trainable: TrainableModel) -> HeldParameters:
    dtype = spec.lora.base_dtype if spec.lora_rank is not None else "fp32"
    rounds_frozen = spec.lora_rank is None and spec.param_dtype == "bf16"
    return HeldParameters(trainable, dtype, spec.precision_kind, rounds_frozen)


def row_bytes(columns: int, dtype: str) -> int:
    """Return the bytes of a quantised row: its scale in fp32, and the codes, padded to a multiple of 4; with `nf4` also
    the codes of scales."""
    blocks = -(-columns // BLOCK)
    codes = columns if dtype == "int8" else blocks + blocks * BLOCK // 2
    return 4 + -(-codes // 4) * 4
