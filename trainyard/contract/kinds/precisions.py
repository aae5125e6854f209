"""The precisions: the facts about each by which code decides. The worker registers the data type of each."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8"]


@dataclass(frozen=True, kw_only=True)
class PrecisionKind:
    """One data type of the forward and backward pass."""

    name: str
    value_bytes: int
    """The size of a computed value."""
    computes_in_bf16: bool = False
    """Values between operations are bf16, whose range is that of fp32."""
    scales_loss: bool = False
    """Small gradients would be 0, and large losses infinite: section `amp` states how the loss is scaled."""
    converts_linear_layers: bool = False
    """Linear layers compute in 8 bits, by torchao; this is quick only in compiled blocks."""
    is_emulated_on_cpus: bool = False
    """CPUs compute in fp32 and round."""
    computes_in_fp32: bool = False
    """Matrix products of GPUs may use TF32."""
    supports_half_parameters: bool = False
    """Whether the trained parameters can be bf16."""

    @property
    def is_half(self) -> bool:
        """Whether the forward computes in 16 bits or fewer."""
        return self.value_bytes < 4


_KINDS = (
    PrecisionKind(name="auto", value_bytes=4),
    PrecisionKind(name="fp32", value_bytes=4, computes_in_fp32=True),
    PrecisionKind(name="bf16", value_bytes=2, computes_in_bf16=True, supports_half_parameters=True),
    PrecisionKind(name="fp16", value_bytes=2, scales_loss=True, is_emulated_on_cpus=True),
    PrecisionKind(
        name="fp8", value_bytes=2, computes_in_bf16=True, converts_linear_layers=True, supports_half_parameters=True
    ),
)
PRECISIONS = {kind.name: kind for kind in _KINDS}
"""The precisions by name. `auto` stands for one that is not chosen yet, and for none in tasks without a training
loop."""

AUTO_ON_GPUS: Precision = "bf16"
AUTO_ON_CPUS: Precision = "fp32"


def precision_kind(name: object) -> PrecisionKind:
    """Return the facts about a precision; for one of another release, a record without facts."""
    return PRECISIONS[name if isinstance(name, str) and name in PRECISIONS else "auto"]
