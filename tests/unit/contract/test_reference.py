"""docs/spec.md matches the spec."""

from pathlib import Path

from trainyard.contract.spec.reference import reference
from trainyard.contract.spec.sections import Batch
from trainyard.contract.spec.training_spec import TrainingSpec

PAGE = Path(__file__).parents[3] / "docs" / "spec.md"


def test_page_is_up_to_date_with_the_docstrings() -> None:
    assert PAGE.read_text() == reference(), "docs/spec.md is out of date; `make docs` writes it anew"


def test_page_has_every_field_and_section() -> None:
    page = reference()
    for name in TrainingSpec.model_fields:
        assert f"| `{name}` |" in page
    for name, field in Batch.model_fields.items():
        assert f"| `{name}` |" in page
        assert (field.description or "").split(":")[0] in page


def test_page_has_bounds_and_choices() -> None:
    page = reference()
    assert "| `lr` | number, above 0 | `0.001` |" in page
    assert "`keep`, `drop`, `pad`" in page
