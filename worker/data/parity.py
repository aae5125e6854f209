"""A small regression made from the seed: the same numbers on every machine and every rank."""

import numpy as np
import torch


def make_parity(examples: int, inputs: int, outputs: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a noisy smooth function."""
    generator = np.random.RandomState([seed % 2**32, seed // 2**32 % 2**32, 7])
    x = generator.standard_normal((examples, inputs))
    mixing = generator.standard_normal((inputs, outputs))
    y = np.tanh(x @ mixing) + 0.1 * generator.standard_normal((examples, outputs))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))
