"""What a checkpoint holds, as tensors only: model, optimizer moments, loss scale, progress, every rank's generators."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from worker.core.distributed import Ranks
from worker.core.random_state import capture_random_state, restore_random_state, seed_generators
from worker.engine.precision import Precision
from worker.engine.trainable import frozen_names

StateDict = dict[str, Any]


@dataclass
class TrainingState:
    """The things whose state is the run's."""

    module: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision
    ranks: Ranks
    seed: int

    def capture(self, step: int, skipped: int) -> StateDict:
        """The state after `step` updates. Never before the first: torch makes up moments for an optimizer without."""
        moments, _ = self._optimizer_state()
        return {
            "model": trained_state(self.module),
            "optimizer": moments,
            "progress": {"step": torch.tensor(step), "skipped": torch.tensor(skipped), "scaler": self._scaler()},
            "rng": {f"rank-{self.ranks.rank}": capture_random_state(self.ranks.device)},
        }

    def template(self, saved_ranks: int) -> StateDict:
        """Tensors of the right shapes to load into. Generators are asked for only where this rank has some."""
        state = self.capture(0, 0)
        if self.ranks.rank >= saved_ranks:
            del state["rng"]
        return state

    def weights(self) -> StateDict:
        """What of a template is the model."""
        return {"model": trained_state(self.module)}

    def restore_weights(self, state: StateDict) -> None:
        """Put loaded weights in place, and nothing else."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        partly = StateDictOptions(strict=not frozen_names(self.module))
        set_model_state_dict(self.module, state["model"], options=partly)

    def restore(self, state: StateDict) -> int:
        """Put a loaded template in place; returns the steps that were skipped."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        # Rates, decay and fused are the spec's, not the checkpoint's: the optimizer's own groups are put back.
        _, groups = self._optimizer_state()
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        set_optimizer_state_dict(self.module, self.optimizers, {**state["optimizer"], **groups}, options=flat)
        # After the optimizer: asking a fresh one for its state makes it take a step.
        self.restore_weights(state)
        progress = state["progress"]
        if self.precision.scaler:
            scale, growth = progress["scaler"].tolist()
            scaler = self.precision.scaler
            scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)})
        if "rng" in state:
            restore_random_state(state["rng"][f"rank-{self.ranks.rank}"], self.ranks.device)
        else:
            seed_generators(self.seed + int(progress["step"]), self.ranks.rank)
        return int(progress["skipped"])

    def _optimizer_state(self) -> tuple[StateDict, StateDict]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        state = get_optimizer_state_dict(self.module, self.optimizers, options=flat)
        moments = {key: value for key, value in state.items() if isinstance(value, torch.Tensor) and _moment(key)}
        return moments, {key: value for key, value in state.items() if not _moment(key)}

    def _scaler(self) -> torch.Tensor:
        if self.precision.scaler is None:
            return torch.zeros(2, dtype=torch.float64)
        state = self.precision.scaler.state_dict()
        return torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)


def trained_state(module: nn.Module, *, whole: bool = False) -> StateDict:
    """Everything but the frozen parameters, by name; each rank's shards, or with `whole` all of it in the first rank's
    memory and nothing on the others. A collective."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # torch leaves a frozen parameter out by one of its names only; the others would bring a tied one back.
    frozen = frozen_names(module)
    options = StateDictOptions(full_state_dict=whole, cpu_offload=whole, ignore_frozen_params=bool(frozen))
    state = get_model_state_dict(module, options=options)
    return {name: tensor for name, tensor in state.items() if name not in frozen}


def _moment(key: str) -> bool:
    return key.startswith("state.")
