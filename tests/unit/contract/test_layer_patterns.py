"""Values of layers by patterns: the first match counts, and patterns are found for any values."""

import random

from trainyard.contract.spec.layer_patterns import patterns_of, value_of

LAYERS = [f"{top}layers.{number}.{part}" for top in ("", "b.") for number in (0, 1, 10) for part in ("q", "v", "q.v")]


def test_first_pattern_that_matches_counts():
    patterns = {"*.1.q": 1, "q": 2, "layers.*": 3}
    layers = {"layers.1.q": 1, "layers.2.q": 2, "layers.2.v": 3, "head": 9}
    assert {layer: value_of(layer, patterns, 9) for layer in layers} == layers


def test_last_parts_name_layers_of_one_value():
    values = {f"layers.{number}.{part}": rank for number in range(3) for part, rank in (("q", 2), ("v", 4))}
    assert patterns_of(values, 4) == {"q": 2}


def test_patterns_give_each_layer_its_value():
    drawn = random.Random(0)
    for _ in range(300):
        values = {layer: drawn.choice((1, 1, 2, 3)) for layer in drawn.sample(LAYERS, 8)}
        patterns = patterns_of(values, 1)
        assert {layer: value_of(layer, patterns, 1) for layer in values} == values
