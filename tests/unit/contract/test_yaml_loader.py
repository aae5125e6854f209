"""YAML as data only: other features are refused quickly, with the line."""

import pytest

from tests.support.cpu_limit import at_most
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.yaml_loader import load_yaml


def refusal(text):
    with pytest.raises(SpecError) as caught:
        load_yaml(text)
    return str(caught.value)


class TestLoadYaml:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a: [1", "not valid YAML: line 2, column 1: did not find expected ',' or ']'"),
            ("a: b: c", "not valid YAML: line 1, column 5: mapping values are not allowed in this context"),
            ("a: &x 1\nb: *x", "not valid YAML: line 1, column 4: anchors and aliases are not allowed"),
            ("a: *x", "not valid YAML: line 1, column 4: anchors and aliases are not allowed"),
            ("<<: *x", "not valid YAML: line 1, column 5: anchors and aliases are not allowed"),
            ("a: 1\nb: 2\na: 3", "not valid YAML: line 3, column 1: duplicate key 'a'"),
            ("o: {lr: 1, lr: 2}", "not valid YAML: line 1, column 12: duplicate key 'lr'"),
            ("[" * 40 + "]" * 40, "not valid YAML: line 1, column 33: nested deeper than 32"),
            ("a: \x00", "not valid YAML: unacceptable character #x0000: control characters are not allowed"),
        ],
    )
    def test_syntax_error_has_its_position(self, text, expected):
        assert refusal(text).splitlines()[0].startswith(expected)

    @pytest.mark.parametrize(
        "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!mine", "!!python/tuple", "!!binary"]
    )
    def test_tags_create_only_plain_data(self, tag):
        try:
            document = load_yaml(f"a: {tag} ['aGk=']" if tag != "!!binary" else "a: !!binary aGk=")
        except SpecError:
            return
        assert document == {"a": b"hi"}

    def test_exponential_aliases_are_rejected(self):
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
        with at_most(1):
            assert "anchors and aliases are not allowed" in refusal("\n".join(lines))

    @pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 50_000 + "x"])
    def test_depth_does_not_exhaust_the_stack(self, text):
        assert "not valid YAML" in refusal(text)

    def test_plain_data_is_loaded(self):
        text = "a: {b: [1, 2.5, yes, null, 'x']}\nc: 1e-4\nd: 2.0e-4\n"
        assert load_yaml(text) == {"a": {"b": [1, 2.5, True, None, "x"]}, "c": "1e-4", "d": 2e-4}

    @pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T10:00:00Z", "2026-01-01 10:00:00"])
    def test_date_is_loaded_as_text(self, text):
        assert load_yaml(f"metadata: {{date: {text}}}\nname: {text}") == {"metadata": {"date": text}, "name": text}

    def test_all_text_option_keeps_only_null(self):
        text = "{a: 1, b: [yes, 1.50, 'x', \"2\"], 3: null}"
        assert load_yaml(text, all_text=True) == {"a": "1", "b": ["yes", "1.50", "x", "2"], "3": None}

    def test_several_documents_are_rejected(self):
        assert "not valid YAML" in refusal("a: 1\n---\nb: 2\n")

    def test_invalid_keys_are_rejected(self):
        assert "not valid YAML" in refusal("? [1, 2]\n: x\n")
