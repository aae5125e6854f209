"""The core knows no plugin: neither its name, nor its addresses, nor its files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import service
from service.plugins.installed import PLUGINS

ROOT = Path(service.__file__).parent
NAMES = tuple(plugin.name for plugin in PLUGINS)
COMPOSITION = {"main.py"}
"""The file that adds the plugins to the core."""
OTHER_NAMES = ("web/help_texts.py", "db/models/")
"""Where such names are pages of `docs/`, or tables. The tables of plugins are those of the database in all services."""
ADDRESSES = tuple(
    address
    for plugin in PLUGINS
    for address in (
        *(prefix.rstrip("/") for prefix in plugin.prefixes),
        *(link.path for link in (*plugin.navigation, *plugin.admin_tabs)),
        *(f"/compare?{groups.parameter}=" for groups in plugin.run_groups),
    )
)
FILES = tuple(path.name for path in ROOT.glob("plugins/*/*/*.*") if path.parent.name in ("static", "templates"))


def names_in(text: str) -> list[str]:
    """Return what a template or script of the core may not name."""
    quoted = [name for name in NAMES if re.search(rf"""["'`]{name}["'`]""", text)]
    addresses = [one for one in ADDRESSES if re.search(rf"{re.escape(one)}(?![\w-])", text)]
    return [*quoted, *addresses, *(name for name in FILES if re.search(rf"[\"'/]{re.escape(name)}", text))]


def core_modules() -> Iterator[Path]:
    for path in ROOT.rglob("*.py"):
        if "plugins" not in path.relative_to(ROOT).parts:
            yield path


@pytest.mark.parametrize("text", ['hasPlugin("sweeps")', 'call("/v1/sweeps/x")', 'href="/models"', 'from "./sweep.js"'])
def test_names_of_plugins_are_noticed(text: str) -> None:
    assert names_in(text)


def test_no_page_of_the_core_names_a_plugin() -> None:
    paths = [path for folder in ("templates", "static") for path in ROOT.glob(f"web/{folder}/*") if path.is_file()]
    assert len(paths) > 100
    assert {path.name: names for path in paths if (names := names_in(path.read_text()))} == {}


def test_no_module_of_the_core_names_or_imports_a_plugin() -> None:
    problems = []
    for path in core_modules():
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("service.plugins"):
                if name not in COMPOSITION:
                    problems.append((name, node.module))
            elif isinstance(node, ast.Constant) and node.value in NAMES and not name.startswith(OTHER_NAMES):
                problems.append((name, node.value))
    assert problems == []
