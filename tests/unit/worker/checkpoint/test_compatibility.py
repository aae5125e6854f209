"""The differences between a checkpoint and a model."""

from trainyard.contract.spec.training_spec import parse_spec
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
    def spec(self, **data):
        model = {"source": "hf", "path": "/models/lion"}
        data = data or {"source": "jsonl", "path": "/data/chat.jsonl"}
        return parse_spec({"task": "causal_lm", "steps": 1, "model": model, "data": data, "lora_rank": 2})

    def test_changed_base_is_named_with_its_folder(self):
        saved, current = {"data": "a", "model.path": "b"}, {"data": "a", "model.path": "c"}
        message = "model.path: the frozen base model in /models/lion has changed"
        assert changed_source(saved, current, self.spec()) == message

    def test_changed_examples_are_named_with_their_file(self):
        message = "data.path: the training examples in /data/chat.jsonl have changed"
        assert changed_source({"data": "a"}, {"data": "b"}, self.spec()) == message

    def test_changed_examples_without_a_file_are_named(self):
        spec = self.spec(source="builtin", name="stdlib")
        assert changed_source({"data": "a"}, {"data": "b"}, spec) == "data: the training examples have changed"

    def test_equal_sources_are_accepted(self):
        assert changed_source({"data": "a"}, {"data": "a"}, self.spec()) is None

    def test_checkpoint_of_an_earlier_release_has_no_digest(self):
        assert changed_source({}, {"data": "a"}, self.spec()) is None
