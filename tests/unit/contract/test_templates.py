"""Presets are valid specs, and filling one in gives a valid spec or an error."""

import pytest

from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.templates import (
    UnknownTemplateError,
    fill_template,
    load_template,
    set_path,
    template_names,
)
from trainyard.contract.spec.training_spec import parse_spec


class TestPresets:
    def test_presets_of_the_readme_exist(self):
        assert {"digits_ddp", "gpt_stdlib", "mlp_parity"} <= set(template_names())

    @pytest.mark.parametrize("name", template_names())
    def test_each_preset_is_accepted_and_has_a_description(self, name):
        template = load_template(name)
        assert resolve(parse_spec(template.spec), Site("cpu", "local"))
        assert template.description.endswith(".")
        assert "\n" not in template.description

    @pytest.mark.parametrize("name", ["nope", "../digits_ddp", "", "digits_ddp.yaml"])
    def test_unknown_preset_error_lists_the_presets(self, name):
        with pytest.raises(UnknownTemplateError, match=r"there are: .*comm_check, .*digits_ddp, .*mlp_parity"):
            load_template(name)


class TestFill:
    def test_values_are_set_at_their_paths(self):
        filled = fill_template("digits_ddp", {"gpus": 1, "optimizer.lr": "1e-3", "health.on_nan": "skip"})
        assert (filled["gpus"], filled["optimizer"]["lr"]) == (1, "1e-3")
        assert filled["optimizer"]["name"] == "adamw"
        assert filled["health"] == {"on_nan": "skip"}

    def test_preset_is_not_modified(self):
        before = load_template("digits_ddp").spec
        fill_template("digits_ddp", {"optimizer.lr": 1.0})
        assert load_template("digits_ddp").spec == before

    def test_invalid_value_is_rejected(self):
        with pytest.raises(SpecError, match="gpus: must be greater than or equal to 1"):
            fill_template("digits_ddp", {"gpus": 0})

    def test_set_path_copies_nested_values(self):
        inner = {"lr": 1}
        document = {"optimizer": inner, "gpus": 1}
        set_path(document, "optimizer.lr", 2)
        set_path(document, "gpus.nested", 3)
        assert document == {"optimizer": {"lr": 2}, "gpus": {"nested": 3}}
        assert inner == {"lr": 1}
