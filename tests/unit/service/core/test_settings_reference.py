"""docs/settings.md matches the settings."""

from pathlib import Path

from service.core.settings import Settings
from service.core.settings_reference import reference

PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "docs/settings.md is out of date; `make docs` writes it anew"


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_defaults_do_not_depend_on_the_machine() -> None:
    assert str(Path.home()) not in reference()
