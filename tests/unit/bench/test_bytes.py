"""The bill of bytes: what a step moves outside of matrix products, at the true shapes and without a device.

A number that changes is a change of the table here. `MISSED` names the bounds that are not reached yet.
"""

import pytest
import torch
from torch.nn import functional

from bench import bytes as bill_program
from bench._bill import Bill, counting
from bench.gpu.shapes import SHAPES

EXPECTED = {
    ("head", "trained"): {"1B": (10.3, 22), "3B": (12.5, 14), "8B": (14.6, 10)},
    ("head", "frozen in bf16"): {"1B": (6.3, 17), "3B": (6.5, 11), "8B": (6.6, 8)},
    ("head", "trained, 30% targets"): {"1B": (13.9, 21), "3B": (18.0, 17), "8B": (35.3, 17)},
    ("head", "frozen in bf16, 30% targets"): {"1B": (7.3, 18), "3B": (8.0, 15), "8B": (8.6, 15)},
    ("casts", "micro-batch"): {"1B": (10.7, 225), "3B": (11.3, 393), "8B": (10.8, 449)},
    ("update", "fp32"): {"1B": (28.0, 68), "3B": (28.0, 116), "8B": (28.0, 132)},
    ("update", "halves"): {"1B": (28.0, 180), "3B": (28.0, 312), "8B": (28.0, 357)},
    ("update", "halves, bf16 moments"): {"1B": (18.0, 180), "3B": (18.0, 312), "8B": (18.0, 357)},
    ("update", "halves, int8 moments"): {"1B": (14.1, 180), "3B": (14.1, 312), "8B": (14.1, 357)},
    ("clip", "fp32"): {"1B": (12.0, 394), "3B": (12.0, 682), "8B": (12.0, 780)},
    ("clip", "halves, bf16 moments"): {"1B": (2.0, 119), "3B": (2.0, 203), "8B": (2.0, 231)},
    ("dequantisation", "nf4"): {"1B": (2.5, 112), "3B": (2.5, 196), "8B": (2.5, 224)},
    ("dequantisation", "int8"): {"1B": (3.0, 112), "3B": (3.0, 196), "8B": (3.0, 224)},
    ("adapters", "rank 16, all layers"): {"1B": (4.0, 1120), "3B": (4.0, 1960), "8B": (4.0, 2240)},
    ("data", "tokens, labels"): {"1B": (32.0, 1), "3B": (32.0, 1), "8B": (32.0, 1)},
}
"""Bytes per unit, and launches, by phase and recipe."""
MISSED: set[tuple[str, str]] = set()
"""Phases that move more than their bound."""


def counted(shape):
    yield from bill_program.head_lines(shape)
    yield bill_program.casts_line(shape)
    for state in bill_program.STATES:
        yield bill_program.update_line(shape, state)
    yield bill_program.clip_line(shape, "fp32")
    yield bill_program.clip_line(shape, "halves, bf16 moments")
    yield bill_program.dequantisation_line(shape, "nf4")
    yield bill_program.dequantisation_line(shape, "int8")
    yield bill_program.adapters_line(shape)
    yield bill_program.data_line(shape)


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_bytes_and_launches_of_each_phase(shape):
    lines = {(line.phase, line.recipe): line for line in counted(shape)}
    measured = {key: (round(line.per_unit, 1), line.count.launches) for key, line in lines.items()}
    assert measured == {key: table[shape.name] for key, table in EXPECTED.items() if shape.name in table}
    assert sum(line.count.synchronisations for line in lines.values()) == 0
    assert {key for key, line in lines.items() if line.exceeds} == MISSED
    bounded = {"head", "update", "dequantisation", "adapters"}
    assert {line.phase for line in lines.values() if line.limit is not None} == bounded


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_ignored_targets_cost_no_products(shape):
    lines = {line.recipe: line.count for line in bill_program.head_lines(shape)}
    for recipe in ("trained", "frozen in bf16"):
        few, every = lines[f"{recipe}, 30% targets"], lines[recipe]
        assert 0.3 * every.flops <= few.flops <= 0.32 * every.flops
        assert few.bytes < 0.75 * every.bytes


def test_operations_are_counted_as_kernels_run_them():
    with counting() as bill:
        wide, narrow = torch.zeros(1000), torch.zeros(1000, dtype=torch.bfloat16)
        table, index = torch.zeros(50, 10), torch.zeros(7, dtype=torch.int64)
        cases = {
            "add": (lambda: wide + wide[:1].expand(1000), 4000 + 4 + 4000),
            "in place": (lambda: wide.mul_(2.0), 8000),
            "cast": (lambda: wide.bfloat16(), 6000),
            "copy": (lambda: narrow.copy_(wide), 6000),
            "fill": (lambda: wide.zero_(), 4000),
            "view": (lambda: wide.view(10, 100).t(), 0),
            "product": (lambda: wide.view(10, 100) @ wide.view(100, 10), 0),
            "added product": (lambda: wide.view(100, 10).addmm_(wide.view(100, 10), table[:10]), 8000),
            "sum with a product": (lambda: wide.view(100, 10).addmm(wide.view(100, 10), table[:10]), 8000),
            "product and bias": (lambda: wide[:10].addmm(wide.view(100, 10), table[:10]), 0),
            "copies": (lambda: torch._foreach_copy_([wide, wide[:10]], [narrow, narrow[:10]]), 6060),
            "lookup": (lambda: functional.embedding(index, table), 2 * 4 * 70 + 56),
            "softmax": (lambda: table.log_softmax(dim=1), 4 * 2000),
        }
        for name, (operation, _) in cases.items():
            with bill.phase(name):
                operation()
    assert {name: bill.phases[name].bytes for name in cases} == {name: size for name, (_, size) in cases.items()}
    assert bill.phases["view"].launches == 0
    flops = {name: bill.phases[name].flops for name in ("product", "added product", "add")}
    assert flops == {"product": 2 * 10 * 100 * 10, "added product": 2 * 100 * 10 * 10, "add": 0}


def test_reading_a_value_counts_as_a_synchronisation():
    with counting() as bill, bill.phase("step"):
        value = torch.ones(4).sum()
        with pytest.raises(Exception, match="_local_scalar_dense"):
            float(value)
    assert bill.phases["step"].synchronisations == 1


WAITING = {
    "selection by a mask": lambda values, mask: values[mask],
    "assignment by a mask": lambda values, mask: values.__setitem__(mask, values[:2].clone()),
    "comparison": torch.equal,
    "unique values": lambda values, mask: values.unique(),
    "counts": lambda values, mask: torch.bincount(values),
    "repetitions": lambda values, mask: torch.repeat_interleave(values, values),
}


@pytest.mark.parametrize("name", WAITING)
def test_results_of_unknown_size_count_as_synchronisations(name):
    values, mask = torch.arange(4), torch.tensor([True, False, True, False])
    with Bill() as bill:
        WAITING[name](values, mask)
    assert bill.phases["other"].synchronisations == 1


def test_masks_that_fill_and_known_sizes_wait_for_nothing():
    values, mask = torch.arange(4), torch.tensor([True, False, True, False])
    with Bill() as bill:
        values[mask] = 7
        values[torch.tensor([0, 2])] += 1
        torch.repeat_interleave(values, values, output_size=20)
    assert bill.phases["other"].synchronisations == 0
    assert values.tolist() == [8, 1, 8, 3]


def test_program_fails_where_a_bound_is_exceeded(monkeypatch, capsys):
    line = bill_program.data_line(SHAPES[0])
    for limit, code in ((31.0, 1), (32.0, 0)):
        bounded = bill_program.Line(line.phase, line.recipe, line.count, line.units, line.unit, limit)
        monkeypatch.setattr(bill_program, "lines", lambda shape, bounded=bounded: [bounded])
        assert bill_program.main() == code
    output = capsys.readouterr().out
    assert "32.0 B/token" in output
    assert "Milliseconds are predictions: bytes at 4.3 TB/s." in output
