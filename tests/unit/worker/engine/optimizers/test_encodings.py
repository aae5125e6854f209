"""Moments in bf16 and int8: rounding is unbiased and repeatable, and no positive moment becomes zero."""

import pytest
import torch

from worker.engine.optimizers.encodings import BLOCK, EncodedRows, random_bits, scales_shape, stored_dtype

SHAPE = (6, 700)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def zeros(shape, dtype, *, positive=False):
    stored = stored_dtype(shape, dtype)
    scales = torch.zeros(scales_shape(shape)) if stored == torch.uint8 else None
    return EncodedRows(torch.zeros(shape, dtype=stored), scales, positive=positive)


def bits(shape, step=1, position=0):
    count = torch.Size(shape).numel()
    return random_bits(count, position, (3, step, 5), torch.device("cpu")).bitwise_and(0xFFFF)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
class TestRounding:
    def test_mean_of_many_roundings_is_the_value(self, dtype, positive):
        values = normal(*SHAPE).square() if positive else normal(*SHAPE)
        stored, total = zeros(SHAPE, dtype, positive=positive), torch.zeros(SHAPE)
        for step in range(400):
            stored.encode(values, bits(SHAPE, step))
            total += stored.decode()
        # A step of the codes is at most 7 % of a value's block; the mean of 400 deviates by a twentieth of it at most.
        assert torch.linalg.norm(total / 400 - values) <= 2e-3 * torch.linalg.norm(values)

    def test_stored_values_are_stored_again_without_a_change(self, dtype, positive):
        values = normal(*SHAPE).abs() if positive else normal(*SHAPE)
        stored = zeros(SHAPE, dtype, positive=positive)
        stored.encode(values, bits(SHAPE))
        decoded, before = stored.decode(), stored.values.clone()
        stored.encode(decoded)
        assert torch.equal(stored.values, before)

    def test_rows_round_alike_in_any_part(self, dtype, positive):
        values = normal(*SHAPE).abs() if positive else normal(*SHAPE)
        whole = zeros(SHAPE, dtype, positive=positive)
        whole.encode(values, bits(SHAPE))
        part = zeros((2, 700), dtype, positive=positive)
        part.encode(values[3:5], bits((2, 700), position=3 * 700))
        assert torch.equal(part.decode(), whole.decode()[3:5])


class TestInt8:
    def test_relative_error_of_positive_values_is_that_of_one_code(self):
        values = 10.0 ** (-5 * torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)))
        stored = zeros(SHAPE, "int8", positive=True)
        stored.encode(values)
        assert ((stored.decode() - values) / values).abs().max() <= 0.035

    def test_positive_values_never_become_zero(self):
        values = torch.full((4, BLOCK), 1e-20)
        values[:, 0], values[:, 1] = 1.0, 0.0
        stored = zeros((4, BLOCK), "int8", positive=True)
        stored.encode(values, bits((4, BLOCK)))
        decoded = stored.decode()
        assert (decoded[:, 2:] > 0).all()
        assert (decoded[:, 1] == 0).all()

    def test_largest_magnitude_of_a_block_is_exact(self):
        values = -normal(4, 2 * BLOCK).abs()
        stored = zeros((4, 2 * BLOCK), "int8")
        stored.encode(values, bits((4, 2 * BLOCK)))
        assert torch.equal(stored.decode().view(-1, BLOCK).amin(-1), values.view(-1, BLOCK).amin(-1))

    def test_zeros_stay_zeros(self):
        stored = zeros(SHAPE, "int8")
        stored.encode(torch.zeros(SHAPE), bits(SHAPE))
        assert not stored.decode().any()

    def test_values_that_are_no_number_stay_visible(self):
        values = normal(*SHAPE)
        values[0, 0], values[1, 0] = torch.nan, torch.inf
        for dtype in ("bf16", "int8"):
            stored = zeros(SHAPE, dtype)
            stored.encode(values.clone(), bits(SHAPE))
            assert not stored.decode()[:2, 0].isfinite().any()
            assert stored.decode()[2:].isfinite().all()

    def test_vectors_and_short_rows_stay_in_fp32(self):
        dtypes = [stored_dtype(shape, "int8") for shape in ((4096,), (), (512, 8), (512, 64), (8, 4, 4, 4))]
        assert dtypes == [torch.float32, torch.float32, torch.float32, torch.uint8, torch.uint8]


class TestRandomBits:
    def test_each_bit_is_set_half_of_the_time_for_any_key(self):
        for key in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 3, 7)):
            numbers = random_bits(2**16, 0, key, torch.device("cpu"))
            for bit in range(32):
                assert abs(float((numbers >> bit & 1).float().mean()) - 0.5) < 0.01, (key, bit)

    def test_bits_of_two_steps_are_independent(self):
        first, second = (random_bits(2**16, 0, (0, step, 0), torch.device("cpu")) for step in (1, 2))
        for shift in range(-2, 3):
            equal = (first ^ second.roll(shift)) & 1
            assert abs(float(equal.float().mean()) - 0.5) < 0.01

    def test_global_generator_is_not_used(self):
        state = torch.get_rng_state()
        random_bits(100, 2**33, (1, 2, 3), torch.device("cpu"))
        assert torch.equal(torch.get_rng_state(), state)
