"""Models of `bench.gpu`, with random weights: nothing is downloaded."""

from dataclasses import dataclass
from typing import Any

TINY_LENGTH = 64


@dataclass(frozen=True)
class Shape:
    """The size of a Llama, and the batch it is trained with."""

    name: str
    width: int
    layers: int
    heads: int
    key_value_heads: int
    feed_forward: int
    tied: bool
    micro_size: int
    vocabulary: int = 128_256
    length: int = 4096

    def document(self, *, dry: bool, **changes: Any) -> dict[str, Any]:
        """Return a spec that trains the model on bytes; with `dry` a tiny one of the same kind."""
        sizes: dict[str, Any] = {
            "width": 64 if dry else self.width,
            "layers": 2 if dry else self.layers,
            "heads": 4 if dry else self.heads,
            "key_value_heads": 2 if dry else self.key_value_heads,
            "feed_forward": 128 if dry else self.feed_forward,
            "vocab": 512 if dry else self.vocabulary,
            "context": TINY_LENGTH if dry else self.length,
            "tied": self.tied,
        }
        size = 2 if dry else self.micro_size
        return {
            "task": "causal_lm",
            "precision": "bf16",
            "model": {"source": "builtin", "name": "llama", **sizes},
            "data": {"source": "builtin", "name": "stdlib", "eval_fraction": 0},
            "batch": {"size": size, "micro_size": size},
            "optimizer": {"name": "adamw", "lr": 1e-4, "clip_norm": 1.0},
            "steps": 12,
            "log": {"every_steps": 4},
            "checkpoint": {"export": False},
        } | changes


SHAPES = (
    Shape("1B", 2048, 16, 32, 8, 8192, tied=True, micro_size=4),
    Shape("3B", 3072, 28, 24, 8, 8192, tied=True, micro_size=2),
    Shape("8B", 4096, 32, 32, 8, 14_336, tied=False, micro_size=1),
)
"""The sizes of Llama 3.1 and 3.2."""
