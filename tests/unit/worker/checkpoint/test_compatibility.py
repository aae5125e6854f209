"""The differences between a checkpoint and a model."""

from worker.checkpoint.compatibility import difference


def test_equal_names_and_shapes_have_no_difference():
    assert difference({"a": (2,)}, {"a": (2,)}) is None


def test_each_kind_of_difference_is_named():
    saved, expected = {"a": (2,), "b": (3,), "c": (1,)}, {"a": (2,), "b": (4,), "d": (1,)}
    assert difference(saved, expected) == "missing: d; unexpected: c; different shapes: b ((3,) instead of (4,))"


def test_long_name_lists_are_shortened_to_a_count():
    assert difference({}, {f"layer.{n}": (1,) for n in range(8)}) == (
        "missing: layer.0, layer.1, layer.2, layer.3, layer.4 and 3 more"
    )
