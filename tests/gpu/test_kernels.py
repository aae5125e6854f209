"""Kernels in Triton against their references, on a GPU."""

import pytest
import torch

from trainyard.contract.spec.optimization import Loss
from worker.core.float_halves import split
from worker.data.examples import IGNORED_LABEL
from worker.engine.optimizers.encodings import scales_shape
from worker.engine.optimizers.fused_adam import adam_, numbers_of
from worker.engine.quantisation import dequantise, quantise
from worker.tasks import linear_loss

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("terms", [Loss(), Loss(label_smoothing=0.1, z_loss=0.01)])
@pytest.mark.parametrize("classes", [257, 5000, 128_256])
def test_cross_entropy_equals_its_reference(classes, terms, dtype):
    generator = torch.Generator("cuda").manual_seed(1)
    logits = (3 * torch.randn(64, classes, generator=generator, device="cuda")).to(dtype)
    labels = torch.randint(classes, (64,), generator=generator, device="cuda")
    labels[::8], labels[1::8] = IGNORED_LABEL, logits[1::8].argmax(dim=-1)
    results = []
    for function in (linear_loss._cross_entropy, linear_loss.cross_entropy_):
        values, losses, hits = logits.clone(), *torch.empty(2, 64, device="cuda")
        function(values, labels, losses, hits, terms.label_smoothing, terms.z_loss, True)
        results.append((values, losses, hits))
    (expected, losses, hits), (actual, other_losses, other_hits) = results
    torch.testing.assert_close(other_losses, losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual, expected)
    assert torch.equal(other_hits, hits)
    assert hits.sum() >= 8


def test_products_are_added_in_fp32():
    generator = torch.Generator("cuda").manual_seed(1)
    left, right = (torch.randn(512, n, generator=generator, device="cuda").bfloat16() for n in (768, 256))
    total = torch.full((768, 256), torch.nan, device="cuda")
    for times in (1, 2):
        linear_loss.add_product_(total, left, right, times > 1)
        expected = times * (left.double().t() @ right.double())
        assert torch.linalg.norm(total - expected) < 1e-5 * torch.linalg.norm(expected)


@pytest.mark.parametrize("gradients", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("moments", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("halves", [True, False])
def test_bits_of_an_update_equal_those_of_its_reference(halves, moments, gradients):
    size, results = 100_003, []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(1)
        values, low = torch.randn(size, generator=generator), None
        if halves:
            high, low = torch.empty(size, dtype=torch.bfloat16), torch.empty(size, dtype=torch.int16)
            split(values, high, low)
            values, low = high.to(device), low.to(device)
        values, (first, second) = values.to(device), torch.zeros(2, size, dtype=moments, device=device)
        for step in range(1, 5):
            gradient = torch.randn(size, generator=generator).to(gradients).to(device)
            factor = torch.tensor(0.37, device=device) if step % 2 else None
            group = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
            numbers = list(numbers_of(group, step, decoupled=step > 2))
            adam_(values, low, gradient, first, second, factor, numbers, [2**31 - 50_000, -5], False)
        results.append([value.cpu() for value in (values, first, second, low) if value is not None])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("width", [64, 700, 4096])
@pytest.mark.parametrize("halves", [True, False])
def test_bits_of_an_update_with_codes_equal_those_of_its_reference(halves, width):
    shape, results = (40, width), []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(1)
        values, low = torch.randn(shape, generator=generator), None
        if halves:
            high, low = torch.empty(shape, dtype=torch.bfloat16), torch.empty(shape, dtype=torch.int16)
            split(values, high, low)
            values, low = high.to(device), low.to(device)
        values = values.to(device)
        codes = torch.zeros(2, *shape, dtype=torch.uint8, device=device)
        scales = torch.zeros(2, *scales_shape(shape), device=device)
        for step in range(1, 5):
            gradient = torch.randn(shape, generator=generator).to(device)
            group = {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
            numbers = list(numbers_of(group, step, decoupled=True))
            adam_(values, low, gradient, *codes, None, numbers, [2**31 - 50_000, -5], False, *scales)
        results.append([value.cpu() for value in (values, codes, scales, low) if value is not None])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("columns", [64, 129, 5000])
@pytest.mark.parametrize("dtype", ["nf4", "int8"])
def test_dequantised_weights_equal_those_on_the_cpu(dtype, columns):
    weight = torch.randn(9, columns, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    held = quantise(weight, dtype)
    for result in (torch.float32, torch.bfloat16):
        expected = dequantise(held, columns, dtype, result)
        assert torch.equal(dequantise(held.cuda(), columns, dtype, result).cpu(), expected)
