"""Trainers of transformers and TRL, run as programs beside our runs."""

import pytest
import torch

from tests.integration.worker.harness import series

STEPS = 8
BATCH = 6
RATE = 0.003
ADAMW = {"name": "adamw", "lr": RATE, "clip_norm": 1.0}


def arguments(folder, config, **options):
    """Return the arguments of a trainer that trains as our runs do."""
    common = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True}
    training = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "train_sampling_strategy": "sequential",
        "dataloader_drop_last": True,
        "gradient_checkpointing": False,
    }
    return config(**{**common, **training, **options})


def losses_of(trainer_class, micro_batches=1, **options):
    """Train with a trainer; return the loss of each step, of its micro-batches together, and the model."""
    losses = []

    class Recording(trainer_class):
        def training_step(self, *args, **named):
            loss = super().training_step(*args, **named)
            losses.append(loss.item())
            return loss

    trainer = Recording(**options)
    trainer.train()
    whole = [sum(losses[start : start + micro_batches]) for start in range(0, len(losses), micro_batches)]
    return whole, trainer.model


def assert_equal_losses(own, case, losses, rel=1e-5, *, falling=True):
    assert len(losses) == STEPS
    assert list(series(own, case).values()) == pytest.approx(losses, rel=rel, abs=1e-6)
    assert not falling or losses[-1] < 0.95 * losses[0]


def assert_equal_values(own, case, model, rel=1e-4):
    """Compare the trained parameters, which have the same names."""
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    expected = {name.removeprefix("base_model.model."): value for name, value in named.items()}
    exported = own[0][case]["exported"]
    assert exported.keys() == expected.keys()
    for name, value in expected.items():
        actual = torch.tensor(exported[name]).view(value.shape)
        assert torch.linalg.norm(actual - value) <= rel * torch.linalg.norm(value), name
