"""docs/security.md lists every variable that users may set, and every setting that it refers to exists."""

import re
from pathlib import Path

from service.core.settings import Settings
from trainyard.contract.spec.environment import HARMLESS_VARIABLES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def test_security_page_lists_exactly_the_allowed_variables() -> None:
    section = PAGE.partition("## Environment variables")[2].partition("* what the administrator adds")[0]
    listed = re.findall(r"`([A-Z][A-Z0-9_]+)`", section)
    assert sorted(listed) == sorted([*(name for name in HARMLESS_VARIABLES if name != "APP_*"), "APP_"])


def test_security_page_names_existing_settings() -> None:
    names = {name.upper() for name in Settings.model_fields}
    named = {"CODE_ROLES", "ALLOWED_ROOTS", "RUNS_GROUP_READABLE", "ALLOWED_VARIABLES", "SECRETS_KEY_FILE"}
    assert named <= names
    assert all(f"`{name}" in PAGE for name in named)
