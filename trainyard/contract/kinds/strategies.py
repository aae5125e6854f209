"""The strategies: the facts about each by which code decides. The worker registers how it wraps a model for each."""

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["auto", "single", "dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"]


@dataclass(frozen=True, kw_only=True)
class StrategyKind:
    """One way to divide a training among ranks."""

    name: Strategy
    title: str
    """The name in sentences."""
    max_ranks: int | None = None
    """None: any number."""

    is_sharded: bool = False
    """Each rank stores a part of the parameters, gradients and optimizer state; section `fsdp` states how."""
    reshards_after_forward: bool = False
    """Gathered parameters are freed between the forward and the backward, so that no rank holds all of them at once."""
    accumulates_whole_gradients: bool = False
    """Gradients are whole on each rank between micro-batches, and divided only after the last."""
    replicates_shards: bool = False
    """Several groups of ranks hold the whole model each; `fsdp.replicas` states how many."""
    sums_in_buckets: bool = False
    """Gradients are summed over the ranks in buckets of the parameters' data type; section `ddp` states how."""

    has_one_process: bool = False
    """A single process uses all GPUs of the job, so there is only rank 0, on one node."""
    copies_layers: bool = False
    """The layers are copied to each GPU in every forward."""
    needs_gpus: bool = False
    supports_float8: bool = True
    """Whether linear layers can compute in 8 bits."""
    supports_low_bit_bases: bool = True
    """Whether the base of adapters can be held in another data type than fp32."""
    supports_half_parameters: bool = True
    """Whether the trained parameters can be bf16."""
    supports_preferences: bool = True
    """Whether the answers of an example stay together on one GPU, which objectives other than `sft` need."""

    @property
    def sets_forward_dtype(self) -> bool:
        """Whether the wrapped model sets the data type of its forward itself, without autocast around it."""
        return self.is_sharded or self.copies_layers


_KINDS = (
    StrategyKind(name="auto", title="auto"),
    StrategyKind(name="single", title="single", max_ranks=1),
    StrategyKind(
        name="dp",
        title="DP",
        has_one_process=True,
        copies_layers=True,
        needs_gpus=True,
        supports_float8=False,
        supports_low_bit_bases=False,
        supports_half_parameters=False,
        supports_preferences=False,
    ),
    StrategyKind(name="ddp", title="DDP", sums_in_buckets=True),
    StrategyKind(name="zero1", title="zero1", is_sharded=True, accumulates_whole_gradients=True),
    StrategyKind(name="zero2", title="zero2", is_sharded=True),
    StrategyKind(name="fsdp", title="FSDP", is_sharded=True, reshards_after_forward=True),
    StrategyKind(name="hsdp", title="HSDP", is_sharded=True, reshards_after_forward=True, replicates_shards=True),
)
STRATEGIES = {kind.name: kind for kind in _KINDS}
"""The strategies by name, from the least to the most sharding. `auto` stands for one that is not chosen yet, and for
none in tasks without a training loop."""

CHOSEN_STRATEGIES = tuple(kind for kind in _KINDS if kind.name != "auto")
"""The strategies that a training can have."""

AUTO_ON_ONE_RANK: Strategy = "single"
AUTO_ON_SEVERAL_RANKS: tuple[Strategy, ...] = ("ddp", "zero2", "fsdp")
"""What `auto` becomes on several ranks: the first of these that can train the spec and fits its GPUs."""
LEAST_MEMORY: Strategy = "fsdp"
"""The strategy to change to where memory is short, or where host memory holds the parameters."""
