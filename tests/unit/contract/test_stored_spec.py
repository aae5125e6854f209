"""Specs that a later release has stored."""

from typing import Any

import pytest

from tests.support.world import SPEC
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.stored_spec import parse_stored_spec, stored_restart
from trainyard.contract.spec.training_spec import dump_spec, parse_spec


def stored(**changes: Any) -> dict[str, Any]:
    return {**dump_spec(parse_spec(SPEC)), **changes}


@pytest.mark.parametrize("section", ["batch", "data", "model", "optimizer", "restart", "resources"])
def test_new_fields_that_a_job_does_not_use_are_left_out(section: str) -> None:
    later = stored(new_section=None, new_list=[])
    later[section] = {**later[section], "new_option": None}
    assert parse_stored_spec(later) == parse_spec(SPEC)
    assert later["new_list"] == [], "the document is not changed"


def test_a_new_field_that_a_job_uses_is_an_error() -> None:
    with pytest.raises(SpecError, match="new_section"):
        parse_stored_spec(stored(new_section={"size": 3}, new_list=[]))


def test_the_retries_of_any_stored_spec_are_known() -> None:
    later = stored(task="new_task", new_section={"size": 3}, restart={"max_retries": 7, "new_option": 1})
    assert stored_restart(later).max_retries == 7
    assert stored_restart({}).max_retries == parse_spec(SPEC).restart.max_retries
