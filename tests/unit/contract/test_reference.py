"""docs/spec.md says what the spec is."""

from pathlib import Path

from trainyard.contract.spec.reference import reference
from trainyard.contract.spec.sections import Batch
from trainyard.contract.spec.training_spec import TrainingSpec

PAGE = Path(__file__).parents[3] / "docs" / "spec.md"


def test_the_page_is_what_the_docstrings_say_now() -> None:
    assert PAGE.read_text() == reference(), "docs/spec.md is out of date; `make docs` writes it anew"


def test_every_top_level_field_and_every_section_is_on_it() -> None:
    page = reference()
    for name in TrainingSpec.model_fields:
        assert f"| `{name}` |" in page
    for name, field in Batch.model_fields.items():
        assert f"| `{name}` |" in page
        assert (field.description or "").split(":")[0] in page


def test_bounds_and_choices_are_told() -> None:
    page = reference()
    assert "| `lr` | number, above 0 | `0.001` |" in page
    assert "`keep`, `drop`, `pad`" in page
