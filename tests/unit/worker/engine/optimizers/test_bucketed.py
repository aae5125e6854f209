"""Updates of parameters in bf16 equal those in fp32 bit for bit, and moments in fewer bits train nearly as well."""

from functools import cache

import pytest
import torch
from torch import nn

from trainyard.contract.spec.training_spec import parse_spec
from worker.engine.half_parameters import exact_value, split_parameters
from worker.engine.optim import build_optimizer
from worker.engine.optimizers import bucketed
from worker.engine.stored_values import decoded_moments

STEPS = 200
OPTIMIZERS = {
    "adam": {"weight_decay": 0.1},
    "adamw": {"weight_decay": 0.1, "no_decay": ["norms"], "lr_scale": {"0.*": 2.0}},
    "lion": {"weight_decay": 0.1},
    "sgd": {"momentum": 0.9, "weight_decay": 0.1},
}


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 300), nn.LayerNorm(300), nn.Linear(300, 7))


def spec(name, param_dtype="fp32", state_dtype="fp32", **options):
    return parse_spec(
        {
            "task": "regression",
            "steps": 1,
            "seed": 5,
            "precision": "bf16",
            "param_dtype": param_dtype,
            "model": {"name": "mlp"},
            "data": {"source": "builtin", "name": "parity"},
            "optimizer": {"name": name, "lr": 1e-3, "state_dtype": state_dtype, **OPTIMIZERS[name], **options},
        }
    )


def built(name, **dtypes):
    module = network()
    if dtypes.get("param_dtype") == "bf16":
        split_parameters(module, "fp32")
    return module, build_optimizer(spec(name, **dtypes), module)


def update(module, optimizer, step):
    """Make an update by gradients of very different sizes, which depend on the step alone."""
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        size = 10.0 ** float(torch.randn((), generator=generator))
        parameter.grad = size * torch.randn(parameter.shape, generator=generator)
    optimizer.current_step = step
    optimizer.step()


@pytest.mark.parametrize(("name", "bucket"), [*((name, bucketed.BUCKET) for name in OPTIMIZERS), ("adamw", 8000)])
def test_exact_values_equal_an_fp32_run_for_200_steps(monkeypatch, name, bucket):
    monkeypatch.setattr(bucketed, "BUCKET", bucket)
    plain, reference = built(name)
    halved, optimizer = built(name, param_dtype="bf16")
    pairs = list(zip(plain.parameters(), halved.parameters(), strict=True))
    for step in range(1, STEPS + 1):
        update(plain, reference, step)
        update(halved, optimizer, step)
        assert all(torch.equal(one.detach(), exact_value(other)) for one, other in pairs), step
    assert all(other.dtype == torch.bfloat16 for _, other in pairs)
    for one, other in pairs:
        for key, value in reference.state[one].items():
            assert torch.equal(value, optimizer.state[other][key]), key


@pytest.mark.parametrize("dtypes", [("bf16", "fp32"), ("fp32", "bf16"), ("bf16", "int8")])
@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_order_of_values_in_memory_does_not_matter(name, dtypes):
    results = []
    for reorder in (lambda values: values, lambda values: values.to(memory_format=torch.channels_last)):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Conv2d(8, 5, 3), nn.GroupNorm(1, 5))
        module[0].weight.data = reorder(module[0].weight.data)
        if dtypes[0] == "bf16":
            split_parameters(module, "fp32")
        optimizer = build_optimizer(spec(name, *dtypes), module)
        for step in range(1, 4):
            for parameter in module.parameters():
                parameter.grad = torch.randn(parameter.shape)
            module[0].weight.grad = reorder(module[0].weight.grad)
            optimizer.current_step = step
            optimizer.step()
        results.append(exact_value(module[0].weight))
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("name", OPTIMIZERS)
class TestEncodedMoments:
    def test_size_of_a_bucket_does_not_matter(self, monkeypatch, name, dtype):
        results = []
        for bucket in (bucketed.BUCKET, 8000):
            monkeypatch.setattr(bucketed, "BUCKET", bucket)
            module, optimizer = built(name, param_dtype="bf16", state_dtype=dtype)
            for step in range(1, 6):
                update(module, optimizer, step)
            results.append([exact_value(parameter) for parameter in module.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


RATES = {"adamw": 1e-2, "lion": 1e-3, "sgd": 0.05}


@cache
def final_loss(name, param_dtype, state_dtype, steps=80):
    """Train a network to compute what another one does, with a decaying rate. Return the mean of its last losses."""
    teacher, module = regressor(1), regressor(2)
    if param_dtype == "bf16":
        split_parameters(module, "fp32")
    options = {"lr": RATES[name], "weight_decay": 0.0, "no_decay": [], "lr_scale": {}}
    optimizer = build_optimizer(spec(name, param_dtype, state_dtype, **options), module)
    generator, losses = torch.Generator().manual_seed(0), []
    for step in range(1, steps + 1):
        x = torch.randn(32, 64, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            predicted = module(x)
        loss = (predicted.float() - 3 * teacher(x).detach()).square().mean()
        module.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RATES[name] * (1 - (step - 1) / steps)
        optimizer.current_step = step
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-30:]) / 30


def regressor(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 16))


@pytest.mark.parametrize("dtypes", [("fp32", "int8"), ("bf16", "bf16"), ("bf16", "int8")])
@pytest.mark.parametrize("name", RATES)
def test_loss_is_that_of_fp32_within_one_percent(name, dtypes):
    assert final_loss(name, *dtypes) == pytest.approx(final_loss(name, "fp32", "fp32"), rel=0.01)


def test_second_moments_are_positive_where_a_gradient_was():
    module, optimizer = built("adamw", state_dtype="int8")
    for step in range(1, 4):
        update(module, optimizer, step)
    moments = decoded_moments(optimizer.named_state(module))
    second = [value for name, value in moments.items() if name.endswith("exp_avg_sq")]
    assert len(second) == len(list(module.parameters()))
    assert all((value > 0).all() for value in second)


def test_parameters_without_gradient_stay_as_they_are():
    module, optimizer = built("adamw", param_dtype="bf16", state_dtype="int8")
    before = [exact_value(parameter) for parameter in module.parameters()]
    module[1].weight.grad = torch.ones(300, 64)
    optimizer.step()
    changed = [not torch.equal(one, exact_value(other)) for one, other in zip(before, module.parameters(), strict=True)]
    assert changed == [parameter is module[1].weight for parameter in module.parameters()]
    assert int(optimizer.state[module[0].weight]["step"]) == 0
