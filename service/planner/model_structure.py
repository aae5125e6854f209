"""What a model is made of, as far as its memory goes: named parameters, layers that can be adapted, blocks. Pure."""

from dataclasses import dataclass
from math import prod
from typing import Literal

Kind = Literal["linear", "embedding", "norm", "other"]


@dataclass(frozen=True)
class Parameter:
    """One tensor of weights."""

    name: str
    """As `named_parameters` has it."""
    shape: tuple[int, ...]
    kind: Kind = "linear"
    """Of the module that holds it; `linear` can be adapted."""

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Transformer:
    """Sizes that say what a decoder keeps for its backward."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    gated: bool
    """Two projections up, one of them through the activation (Llama's); else one (GPT's)."""
    own: bool = False
    """Our `gpt`: its norms keep less than those of transformers' models."""
    pieces: bool = True
    """Whether its logits are made piece by piece where they are many."""


@dataclass(frozen=True)
class ModelStructure:
    """A model's parameters, each once, in the model's order."""

    parameters: tuple[Parameter, ...]
    blocks: tuple[str, ...]
    """Modules that are computed one after the other, and become units of a sharded model."""
    output: str | None = None
    """The layer that makes the output, which `lora.targets: auto` leaves out."""
    tied: frozenset[str] = frozenset()
    """Layers that share their weight with another, which no adapter reaches."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Further names of tied parameters: (alias, name)."""
    transformer: Transformer | None = None
    sizes: tuple[int, ...] = ()
    """Values an example leaves behind in each block; for models that are no transformer."""

    @property
    def count(self) -> int:
        return sum(parameter.size for parameter in self.parameters)
