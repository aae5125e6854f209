"""The differences between a checkpoint and a model."""

from worker.checkpoint.compatibility import changed_source, difference


def test_equal_names_and_shapes_have_no_difference():
    assert difference({"a": (2,)}, {"a": (2,)}) is None


def test_each_kind_of_difference_is_named():
    saved, expected = {"a": (2,), "b": (3,), "c": (1,)}, {"a": (2,), "b": (4,), "d": (1,)}
    assert difference(saved, expected) == "missing: d; unexpected: c; different shapes: b ((3,) instead of (4,))"


def test_long_name_lists_are_shortened_to_a_count():
    assert difference({}, {f"layer.{n}": (1,) for n in range(8)}) == (
        "missing: layer.0, layer.1, layer.2, layer.3, layer.4 and 3 more"
    )


class TestSources:
    def test_changed_source_is_named(self):
        saved, current = {"data": "a", "model.path": "b"}, {"data": "a", "model.path": "c"}
        assert changed_source(saved, current) == "model.path: the frozen base model in the folder has changed"

    def test_equal_sources_are_accepted(self):
        assert changed_source({"data": "a"}, {"data": "a"}) is None

    def test_checkpoint_of_an_earlier_release_has_no_digest(self):
        assert changed_source({}, {"data": "a"}) is None
