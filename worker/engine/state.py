"""The state of a run in a checkpoint, as tensors only: model, optimizer, loss scale, progress, random state of each
rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from worker.core.distributed import Ranks
from worker.core.random_state import capture_random_state, restore_random_state, seed_generators
from worker.engine.callbacks.early_stopping import EarlyStopping
from worker.engine.callbacks.weight_average import WeightAverage
from worker.engine.half_parameters import exact_value, joined, low_halves, set_exact_value
from worker.engine.optimizers.bucketed import BucketedOptimizer
from worker.engine.precision import Precision
from worker.engine.stored_values import convert_moments, decoded_moments, match_moments, match_parameters
from worker.engine.trainable import frozen_names

StateDict = dict[str, Any]


@dataclass
class TrainingState:
    """Captures and restores the state of model, optimizers, loss scaler and random number generators."""

    module: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision
    ranks: Ranks
    seed: int
    early_stopping: EarlyStopping | None = None
    average: WeightAverage | None = None

    def capture(self, step: int, skipped: int) -> StateDict:
        """Return the state after `step` steps: tensors by name, DTensors if sharded. A collective. Before step 1
        it serves only as a template, since torch then initialises the optimizer's state.

        The tensors change in no forward and backward, only in an update: buffers, such as batch statistics, are
        copied, parameters, moments and averages are not. A parameter in bf16 is in `model`, and the other half of its
        exact value in `low_halves`."""
        moments, _ = self._optimizer_state()
        progress = {"step": torch.tensor(step), "skipped": torch.tensor(skipped), "scaler": self._scaler()}
        if self.early_stopping is not None:
            progress["early_stopping"] = self.early_stopping.state()
        state = {
            **self._parameters(copy_buffers=True),
            "optimizer": moments,
            "progress": progress,
            "rng": {f"rank-{self.ranks.rank}": capture_random_state(self.ranks.device)},
        }
        if self.average is not None:
            state["ema"] = self.average.state()
            progress["ema_updates"] = self.average.updates()
        return state

    def _parameters(self, *, copy_buffers: bool = False) -> StateDict:
        model, halves = trained_state(self.module), low_halves(self.module)
        model = _copy_buffers(model, self.module) if copy_buffers else model
        return {"model": model, **({"low_halves": halves} if halves else {})}

    def template(self, saved_ranks: int, stored: Mapping[str, torch.dtype], *, is_fork: bool = False) -> StateDict:
        """Return tensors to load a checkpoint into: without random state on a rank that the checkpoint has none for,
        and without the evaluations that another job has compared. A checkpoint without an average removes `ema`.

        Args:
            stored: The types of the checkpoint's tensors by name, which the template takes over.
        """
        state = self.capture(0, 0)
        match_parameters(state, stored)
        match_moments(state["optimizer"], stored)
        if self.ranks.rank >= saved_ranks:
            del state["rng"]
        if is_fork:
            state["progress"].pop("early_stopping", None)
        return state

    def weights(self, stored: Mapping[str, torch.dtype]) -> StateDict:
        """Return the parameters of a template."""
        state = self._parameters()
        match_parameters(state, stored)
        return state

    def restore_weights(self, state: StateDict) -> None:
        """Restore loaded weights only."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        model, loaded_halves, own = dict(state["model"]), state.get("low_halves", {}), low_halves(self.module)
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for name, tensor in model.items():
            if name in loaded_halves and name not in own:
                model[name] = joined(tensor, loaded_halves[name])
            elif name in own:
                # Two halves were loaded in place.
                if name not in loaded_halves:
                    set_exact_value(parameters[name], tensor)
                model[name] = parameters[name].detach()
        partly = StateDictOptions(strict=not frozen_names(self.module))
        set_model_state_dict(self.module, model, options=partly)

    def restore(self, state: StateDict) -> int:
        """Restore a loaded template; return the number of skipped steps."""
        self._restore_moments(state["optimizer"])
        # Weights come after the optimizer: reading the state of a new optimizer makes it take a step.
        self.restore_weights(state)
        progress = state["progress"]
        if self.precision.scaler:
            scale, growth = progress["scaler"].tolist()
            scaler = self.precision.scaler
            # Zero where the run before had another precision.
            if scale:
                scaler.load_state_dict({**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)})
        if self.early_stopping is not None and "early_stopping" in progress:
            self.early_stopping.restore(progress["early_stopping"])
        if self.average is not None and "ema" in state:
            self.average.restore(state["ema"], progress["ema_updates"])
        if "rng" in state:
            restore_random_state(state["rng"][f"rank-{self.ranks.rank}"], self.ranks.device)
        else:
            seed_generators(self.seed + int(progress["step"]), self.ranks.rank)
        return int(progress["skipped"])

    def _restore_moments(self, loaded: StateDict) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        # Hyperparameters such as learning rate and weight decay come from the spec, not from the checkpoint.
        own, groups = self._optimizer_state()
        if isinstance(self.optimizers[0], BucketedOptimizer):
            convert_moments(loaded, own)
            return
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        state = {**decoded_moments(loaded), **groups}
        set_optimizer_state_dict(self.module, self.optimizers, state, options=flat)

    def _optimizer_state(self) -> tuple[StateDict, StateDict]:
        """Return the state by its names in checkpoints, and the hyperparameters."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        if isinstance(self.optimizers[0], BucketedOptimizer):
            return self.optimizers[0].named_state(self.module), {}
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        state = get_optimizer_state_dict(self.module, self.optimizers, options=flat)
        moments = {
            key: value for key, value in state.items() if isinstance(value, torch.Tensor) and _is_optimizer_tensor(key)
        }
        return moments, {key: value for key, value in state.items() if not _is_optimizer_tensor(key)}

    def _scaler(self) -> torch.Tensor:
        if self.precision.scaler is None:
            return torch.zeros(2, dtype=torch.float64)
        state = self.precision.scaler.state_dict()
        return torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)


def trained_state(module: nn.Module, *, whole: bool = False) -> StateDict:
    """Return all tensors of the model but the frozen parameters, by name. A collective.

    With `whole` they are gathered in rank 0's host memory with exact values, and the other ranks get nothing; else each
    rank gets its shards, parameters in bf16 without their lower halves.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # torch omits a frozen parameter under one of its names only; a tied parameter has several.
    frozen = frozen_names(module)
    options = StateDictOptions(full_state_dict=whole, cpu_offload=whole, ignore_frozen_params=bool(frozen))
    state = get_model_state_dict(module, options=options)
    if whole:
        for name in low_halves(module):
            values = exact_value(module.get_parameter(name))
            gathered = values.full_tensor() if isinstance(values, DTensor) else values
            if name in state:
                state[name] = gathered.cpu()
    return {name: tensor for name, tensor in state.items() if name not in frozen}


def _copy_buffers(state: StateDict, module: nn.Module) -> StateDict:
    """Return the state with copies of the buffers, which a forward may change."""
    buffers = {buffer.untyped_storage().data_ptr() for buffer in module.buffers()}
    return {name: tensor.clone() if _address(tensor) in buffers else tensor for name, tensor in state.items()}


def _address(tensor: torch.Tensor) -> int | None:
    return None if isinstance(tensor, DTensor) else tensor.untyped_storage().data_ptr()


def _is_optimizer_tensor(key: str) -> bool:
    return key.startswith("state.")
