"""Two halves give an fp32 value back bit for bit, and the first is the nearest bf16 value."""

import torch

from worker.core.float_halves import join, split

EDGES = (0, 1, 0x7FFF, 0x8000, 0x18000, 0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000)
"""Zero, the smallest number, ties, the numbers around the largest of bf16, the largest of fp32, infinity."""


def values_of(bits):
    signed = [number - 2**32 if number >= 2**31 else number for number in bits]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def halves(values):
    high, low = torch.empty_like(values, dtype=torch.bfloat16), torch.empty_like(values, dtype=torch.int16)
    split(values.clone(), high, low)
    return high, low


def random_values():
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(0))
    values = bits.to(torch.int32).view(torch.float32)
    return values[~values.isnan()]


def test_any_value_is_the_same_bit_for_bit():
    values = torch.cat([values_of([*EDGES, *(edge | 2**31 for edge in EDGES)]), random_values()])
    assert torch.equal(join(*halves(values)).view(torch.int32), values.view(torch.int32))


def test_first_half_is_the_nearest_bf16_value():
    values = random_values()
    high, low = halves(values)
    ties = low == -(2**15)
    assert torch.equal(high[~ties], values[~ties].bfloat16())
    assert torch.equal(high[ties].abs(), (values[ties].view(torch.int32) + 2**15).view(torch.float32).bfloat16().abs())


def test_values_that_are_no_number_stay_so_in_both_forms():
    values = values_of([0x7FC00000, 0x7F800001, 0x7FFF8000, 0x7FFFFFFF, 0xFFFFFFFF])
    high, low = halves(values)
    assert high.isnan().all()
    assert join(high, low).isnan().all()


def test_values_beyond_the_largest_bf16_number_are_infinite_in_it():
    values = values_of([0x7F7FFFFF, 0xFF7F8000])
    high, low = halves(values)
    assert high.tolist() == [torch.inf, -torch.inf]
    assert torch.equal(join(high, low), values)
