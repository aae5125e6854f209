"""Weights in 8 and 4 bits: their errors, their bytes, and that each row stands alone."""

import pytest
import torch

from worker.engine import quantisation
from worker.engine.quantisation import BLOCK, LEVELS, dequantise, quantise, row_bytes

DTYPES = pytest.mark.parametrize("dtype", ["int8", "nf4"])
CASES = pytest.mark.parametrize(("rows", "columns"), [(8, 256), (5, 100), (3, 7), (1, 1), (0, 64)])


def weights(rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))


def rounded(weight, dtype, result=torch.float32):
    return dequantise(quantise(weight, dtype), weight.shape[1], dtype, result)


class TestErrors:
    def test_nf4_of_normal_weights_is_within_the_bounds_of_bitsandbytes(self):
        # Bounds of bitsandbytes' own test `test_4bit_quant`: mean errors of 4 bits in blocks of at most 64 values.
        weight = weights(1024, 1024)
        error = (rounded(weight, "nf4") - weight).abs()
        assert error.mean() < 0.1
        assert (error / (weight.abs() + 1e-8)).mean() < 0.28

    def test_quantised_scales_add_at_most_one_percent_to_the_error(self):
        weight = weights(256, 1024)
        blocks = weight.view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        levels = torch.tensor(LEVELS)
        nearest = levels[(blocks / scales - levels[:, None, None]).abs().argmin(dim=0)] * scales
        exact = (nearest - blocks).square().mean()
        assert (rounded(weight, "nf4") - weight).square().mean() < 1.02 * exact

    def test_int8_is_within_half_a_step(self):
        weight = weights(64, 300)
        steps = weight.abs().amax(dim=1, keepdim=True) / 127
        assert ((rounded(weight, "int8") - weight).abs() <= 0.5001 * steps).all()

    @DTYPES
    def test_zeros_stay_zeros(self, dtype):
        weight = weights(3, 200)
        weight[1] = 0
        weight[2, :130] = 0
        assert torch.equal(rounded(weight, dtype) == 0, (rounded(weight, dtype) == 0) | (weight == 0))
        assert not rounded(weight, dtype)[weight == 0].any()

    def test_nf4_block_far_below_the_largest_of_its_row_is_not_zero(self):
        weight = weights(1, 128)
        weight[0, 64:] *= 1e-3
        error = (rounded(weight, "nf4") - weight)[0, 64:].abs().mean()
        assert error < 0.15 * weight[0, 64:].abs().mean()

    @DTYPES
    def test_values_that_are_not_finite_are_not_hidden(self, dtype):
        weight = weights(2, 64)
        weight[0, 3] = torch.nan
        result = rounded(weight, dtype)
        assert result[0].isnan().any()
        assert result[1].isfinite().all()


@DTYPES
class TestRows:
    @CASES
    def test_bytes_of_a_row(self, dtype, rows, columns):
        held = quantise(weights(rows, columns), dtype)
        assert held.dtype == torch.uint8
        assert held.shape == (rows, row_bytes(columns, dtype))

    def test_nf4_takes_about_four_bits(self, dtype):
        assert 8 * row_bytes(4096, dtype) / 4096 < (4.14 if dtype == "nf4" else 8.01)

    @CASES
    def test_shards_of_rows_equal_rows_of_the_whole(self, dtype, rows, columns):
        weight = weights(rows, columns)
        parts = [quantise(part, dtype) for part in weight.split(2)] or [quantise(weight, dtype)]
        assert torch.equal(torch.cat(parts), quantise(weight, dtype))

    def test_chunks_equal_the_whole(self, dtype, monkeypatch):
        weight = weights(9, 100)
        whole, values = quantise(weight, dtype), rounded(weight, dtype)
        monkeypatch.setattr(quantisation, "CHUNK", 250)
        assert torch.equal(quantise(weight, dtype), whole)
        assert torch.equal(rounded(weight, dtype), values)

    @pytest.mark.parametrize("result", [torch.bfloat16, torch.float16])
    def test_result_is_rounded_once_from_fp32(self, dtype, result):
        weight = weights(4, 130)
        assert torch.equal(rounded(weight, dtype, result), rounded(weight, dtype).to(result))
