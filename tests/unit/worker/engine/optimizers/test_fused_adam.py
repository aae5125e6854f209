"""Updates by one kernel: the bits of the reference, its closeness to torch's optimizers, and when it is used."""

import itertools

import pytest
import torch

from tests.unit.worker.engine.optimizers.test_bucketed import built, network, spec, update
from worker.core.float_halves import join, split
from worker.engine.half_parameters import exact_value, split_parameters
from worker.engine.optim import build_optimizer, clip_gradients
from worker.engine.optimizers import bucketed, fused_adam
from worker.engine.optimizers.encodings import mixed, random_bits, scales_shape, signed
from worker.engine.optimizers.fused_adam import adam_, numbers_of

SIZE = 4099
STORED = {
    "halves, bf16 moments, bf16 gradients": (True, torch.bfloat16, torch.bfloat16),
    "halves": (True, torch.float32, torch.float32),
    "fp32, bf16 moments": (False, torch.bfloat16, torch.float32),
}
GROUP = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}


@pytest.fixture
def fused(monkeypatch):
    """Let updates run the reference where they would compile it."""
    monkeypatch.setattr(fused_adam, "_compiled_update", lambda: fused_adam._update)


def random_values(size, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator) * 10 ** torch.randn(size, generator=generator)
    values[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    return values


def test_bits_equal_those_of_the_conversions_one_by_one():
    key, device = (5, 7, 3), torch.device("cpu")
    first, second = mixed(key)
    numbers = torch.tensor([signed(first + 11), signed(second)], dtype=torch.int32)
    random = fused_adam._random_bits(SIZE, numbers)
    assert torch.equal(random, random_bits(SIZE, 11, key, device))
    values = random_values(SIZE, 1)
    high, low = torch.empty(SIZE, dtype=torch.bfloat16), torch.empty(SIZE, dtype=torch.int16)
    split(values.clone(), high, low)
    assert torch.equal(fused_adam._joined(high, low).view(torch.int32), join(high, low).view(torch.int32))


def run(name, *, decoupled=True, compiled=False, factor=None, parts=(0, SIZE), steps=4):
    """Return the bits of weights and moments after some updates, each made in parts."""
    halves, moments, gradients = STORED[name]
    values, low = random_values(SIZE, 1), None
    if halves:
        high, low = torch.empty(SIZE, dtype=torch.bfloat16), torch.empty(SIZE, dtype=torch.int16)
        split(values, high, low)
        values = high
    first, second = torch.zeros(2, SIZE, dtype=moments)
    for step in range(1, steps + 1):
        gradient = random_values(SIZE, 10 + step).to(gradients)
        numbers = list(numbers_of(GROUP | {"lr": 1e-3 * step}, step, decoupled=decoupled))
        start, other = mixed((5, step, 3))
        for begin, end in itertools.pairwise(parts):
            tensors = (None if one is None else one[begin:end] for one in (values, low, gradient, first, second))
            adam_(*tensors, factor, numbers, [signed(start + begin), signed(other)], compiled)
    stored = [values.float().nan_to_num(nan=7.0), first.float().nan_to_num(nan=7.0), second.float().nan_to_num(nan=7.0)]
    return stored if low is None else [*stored, low]


@pytest.mark.parametrize("name", STORED)
def test_parts_of_a_tensor_have_the_same_bits(name, monkeypatch):
    expected = run(name)
    monkeypatch.setattr(fused_adam, "_VALUES", 1000)
    for parts in ((0, SIZE), (0, 1, 17, 2001, SIZE)):
        assert all(torch.equal(one, other) for one, other in zip(run(name, parts=parts), expected, strict=True))


def run_rows(*, halves, compiled=False, parts=(0, 13), width=700):
    """Return the bits of weights, codes and scales after some updates, each made in parts."""
    shape = 13, width
    values, low = random_values(13 * width, 1).view(shape), None
    if halves:
        high, low = torch.empty(shape, dtype=torch.bfloat16), torch.empty(shape, dtype=torch.int16)
        split(values, high, low)
        values = high
    codes, scales = torch.zeros(2, *shape, dtype=torch.uint8), torch.zeros(2, *scales_shape(shape))
    for step in range(1, 5):
        gradient = random_values(13 * width, 10 + step).view(shape)
        numbers, (start, other) = list(numbers_of(GROUP, step, decoupled=True)), mixed((5, step, 3))
        for begin, end in itertools.pairwise(parts):
            rows = slice(begin, end)
            stored = (None if one is None else one[rows] for one in (values, low, gradient, *codes))
            key = [signed(start + begin * width), signed(other)]
            adam_(*stored, None, numbers, key, compiled, *(one[rows] for one in scales))
    stored = [values.float().nan_to_num(nan=7.0), codes, scales.nan_to_num(nan=7.0)]
    return stored if low is None else [*stored, low]


@pytest.mark.parametrize("halves", [True, False])
def test_parts_of_rows_with_codes_have_the_same_bits(halves, monkeypatch):
    expected = run_rows(halves=halves)
    assert len(expected[1].unique()) > 100
    monkeypatch.setattr(fused_adam, "_VALUES", 1500)
    for parts in ((0, 13), (0, 1, 4, 13)):
        parted = run_rows(halves=halves, parts=parts)
        assert all(torch.equal(one, other) for one, other in zip(parted, expected, strict=True))


def test_the_kernel_of_codes_is_compared_on_whole_rows():
    rows, scales = torch.zeros(50, 1000), torch.zeros(50, 4)
    part = fused_adam._first_rows(rows, None, rows, rows, rows, torch.ones(()), [0.0], [1], False, scales, scales)
    assert [len(one) for one in (part[0], part[4], part[9])] == [16, 16, 16]
    assert part[5].shape == ()
    assert len(fused_adam._first_rows(torch.zeros(3, 10**5), None)[0]) == 1
    assert len(fused_adam._first_rows(torch.zeros(10**5), None)[0]) == 2**14
    assert len(fused_adam._first_rows(torch.zeros(0, 5), None)[0]) == 0


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(0, 128), (3, 0)])
def test_part_of_a_rank_without_values_is_updated(compiled, shape):
    weights, first, second = torch.zeros(3, *shape)
    numbers = list(numbers_of(GROUP, 1, decoupled=True))
    adam_(weights, None, torch.zeros(shape), first, second, None, numbers, [1, 2], compiled)
    assert weights.shape == shape


@pytest.mark.heavy
@pytest.mark.parametrize("halves", [True, False])
def test_compiled_bits_with_codes_equal_those_of_the_reference(halves):
    pairs = zip(run_rows(halves=halves, compiled=True), run_rows(halves=halves), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.heavy
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("name", STORED)
def test_compiled_bits_equal_those_of_the_reference(name, decoupled):
    for factor in (None, torch.tensor(0.37)):
        expected = run(name, decoupled=decoupled, factor=factor)
        compiled = run(name, decoupled=decoupled, factor=factor, compiled=True)
        assert all(torch.equal(one, other) for one, other in zip(compiled, expected, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("dtypes", [("bf16", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"), ("bf16", "int8")])
def test_updates_are_close_to_those_of_torch(fused, name, dtypes):
    options = dict(zip(("param_dtype", "state_dtype"), dtypes, strict=True))
    plain, reference = built(name, **options)
    module = network()
    if dtypes[0] == "bf16":
        split_parameters(module, "fp32")
    optimizer = build_optimizer(spec(name, *dtypes).model_copy(update={"compile": True}), module)
    pairs = list(zip(plain.parameters(), module.parameters(), strict=True))
    for step in range(1, 21):
        update(plain, reference, step)
        update(module, optimizer, step)
    for one, other in pairs:
        expected, actual = exact_value(one), exact_value(other)
        assert torch.linalg.norm(actual - expected) < 1e-5 * torch.linalg.norm(expected)
        assert int(optimizer.state[other]["step"]) == 20
        for key in ("exp_avg", "exp_avg_sq"):
            expected, actual = reference.state[one][key].float(), optimizer.state[other][key].float()
            # A value that differs in the last digit is rounded to another value of bf16 now and then.
            assert torch.linalg.norm(actual - expected) < 1e-3 * torch.linalg.norm(expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("fp32", "int8")])
def test_clipping_is_part_of_the_update(fused, dtypes, compiled):
    results = []
    for folded in (True, False):
        module = network()
        if dtypes[0] == "bf16":
            split_parameters(module, "fp32")
        optimizer = build_optimizer(spec("adamw", *dtypes).model_copy(update={"compile": compiled}), module)
        for parameter in module.parameters():
            parameter.grad = torch.linspace(-1, 1, parameter.numel()).view_as(parameter).float()
        gradients = [parameter.grad for parameter in module.parameters()]
        norm = torch.nn.utils.get_total_norm(gradients)
        if folded:
            clip_gradients(optimizer, 0.5, norm)
            assert torch.equal(gradients[0].abs().max(), torch.tensor(1.0))
        else:
            torch.nn.utils.clip_grads_with_norm_(list(module.parameters()), 0.5, norm)
        optimizer.step()
        assert optimizer.gradient_factor is None
        results.append([exact_value(parameter) for parameter in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype", "whole"),
    [("adamw", "bf16", 7), ("adam", "bf16", 7), ("adamw", "int8", 7), ("lion", "bf16", 0), ("sgd", "bf16", 0)],
)
def test_adam_alone_has_a_kernel(monkeypatch, fused, name, dtype, whole):
    calls = []
    monkeypatch.setattr(bucketed, "adam_", lambda *args: calls.append(args))
    module = network()
    split_parameters(module, "fp32")
    for compiled, count in ((True, whole), (False, 0)):
        calls.clear()
        optimizer = build_optimizer(spec(name, "bf16", dtype).model_copy(update={"compile": compiled}), module)
        update(module, optimizer, 1)
        assert len(calls) == count
